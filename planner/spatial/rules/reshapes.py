"""Rules of operations that rename dimensions: what was cut stays cut where it ends up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from planner.spatial.layout import Cut, Layout
from planner.spatial.rule import Call, Rule, Step


def permuted(call: Call, order: Sequence[int]) -> Step:
    """Returns the Step of a permutation.

    Args: `order` has the source's dimension for each dimension of the result.
    """
    source = call.tensor("self")
    output = Layout(call.outputs[0], tuple(source.cuts[dim] for dim in order))
    return Step((output,), axes=output.axes)


def permute(call: Call) -> Step:
    ndim = len(call.tensor("self").shape)
    return permuted(call, call.dims("dims", ndim))


def transpose(call: Call) -> Step:
    ndim = len(call.tensor("self").shape)
    names = ("axis0", "axis1") if "axis0" in call.arguments else ("dim0", "dim1")
    a, b = (call.integer(name) % ndim for name in names)
    order = list(range(ndim))
    order[a], order[b] = b, a
    return permuted(call, order)


def movedim(call: Call) -> Step:
    ndim = len(call.tensor("self").shape)
    source, target = call.dims("source", ndim), call.dims("destination", ndim)
    rest = iter(dim for dim in range(ndim) if dim not in source)
    placed = dict(zip(target, source, strict=True))
    return permuted(call, [placed[i] if i in placed else next(rest) for i in range(ndim)])


def unsqueeze(call: Call) -> Step:
    source, shape = call.tensor("self"), call.outputs[0]
    cuts = list(source.cuts)
    cuts.insert(call.integer("dim") % len(shape), None)
    return Step((Layout(shape, tuple(cuts)),), axes=source.axes)


def squeeze(call: Call) -> Step:
    source = call.tensor("self")
    dims = call.dims("dim", len(source.shape))
    kept = [c for i, c in enumerate(source.cuts) if i not in dims or source.shape[i] != 1]
    return Step((Layout(call.outputs[0], tuple(kept)),), axes=source.axes)


def expand(call: Call) -> Step:
    """Returns the Step of an expand or repeat.

    Raises: NoRule where it repeats a dimension that is cut.
    """
    source, shape = call.tensor("self"), call.outputs[0]
    cuts = (*(None,) * (len(shape) - len(source.shape)), *source.cuts)
    if any(cut is not None and cut.size != n for cut, n in zip(cuts, shape, strict=True)):
        raise call.refuse("it repeats a dimension that is cut")
    return Step((Layout(shape, cuts),), axes=source.axes)


def repeat(call: Call) -> Step:
    source = call.tensor("self")
    return expand(replace(call, arguments={"self": source}))


def groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Returns which dimensions turn into which when a tensor is viewed under another shape.

    Returns: the shortest runs (dimensions of `old`, dimensions of `new`) of equal product; dimensions of size 1 join a
        neighbour.
    """
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(left), j + len(right)
        while prod(old[x] for x in left) != prod(new[x] for x in right):
            if prod(old[x] for x in left) < prod(new[x] for x in right):
                left, i = [*left, i], i + 1
            else:
                right, j = [*right, j], j + 1
        found.append((left, right))
    return found


def view(call: Call) -> Step:
    """Returns the Step of a view or reshape.

    Returns: cuts where the cut dimension leads its group, since its rows then stay together in blocks.
    Raises: NoRule where a cut dimension is merged with one before it, or where rows of one rank are split.
    """
    source, shape = call.tensor("self"), call.outputs[0]
    cuts: list[Cut | None] = [None] * len(shape)
    if prod(source.shape) != prod(shape):
        raise call.refuse("it changes the type of its elements")
    for left, right in groups(source.shape, shape):
        for dim in left:
            cut = source.cuts[dim]
            if cut is not None:
                target, placed = _placed(call, source, dim, left, right)
                cuts[target] = placed
    return Step((Layout(shape, tuple(cuts)),), axes=source.axes)


def _placed(call: Call, source: Layout, dim: int, left: list[int], right: list[int]) -> tuple[int, Cut]:
    shape, cut = call.outputs[0], source.cuts[dim]
    assert cut is not None
    if prod(source.shape[x] for x in left[: left.index(dim)]) != 1:
        raise call.refuse("it merges a dimension that is cut with one before it")
    leading = next((x for x in right if shape[x] != 1), None)
    if leading is None:
        raise call.refuse("nothing is left of a dimension that is cut")
    inner_old = prod(source.shape[x] for x in left[left.index(dim) + 1 :])
    inner_new = prod(shape[x] for x in right[right.index(leading) + 1 :])
    points = [p * inner_old for p in cut.points]
    if any(p % inner_new for p in points):
        raise call.refuse("it splits rows that lie on one rank")
    return leading, Cut(cut.axis, tuple(p // inner_new for p in points))


RESHAPES: Final[Mapping[str, Rule]] = {
    "aten.permute": permute,
    "aten.transpose": transpose,
    "aten.swapaxes": transpose,
    "aten.movedim": movedim,
    "aten.unsqueeze": unsqueeze,
    "aten.squeeze": squeeze,
    "aten.expand": expand,
    "aten.expand_as": expand,
    "aten.repeat": repeat,
} | dict.fromkeys(("aten.view", "aten.reshape", "aten.flatten", "aten.unflatten", "aten._unsafe_view"), view)
