"""Rules of operations that pick, add or reorder rows: slices, padding, flips, rolls and concatenation."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from planner.spatial.layout import Cut, Layout, even, full
from planner.spatial.rows_needed import Fetch, gather, intervals, listed
from planner.spatial.rule import Call, Rule, Step, aligned


def _points(call: Call, dim: int) -> tuple[int, ...]:
    cut = call.tensor("self").cuts[dim]
    assert cut is not None
    return cut.points


class Picked(NamedTuple):
    """The rows of a result along one cut dimension, and where they had best be cut."""

    rows: Sequence[int]  # of the source; -1 is fill
    points: tuple[int, ...]


def _with_rows(call: Call, chosen: Mapping[int, Picked], fill: float = 0.0) -> Step:
    source = call.tensor("self")
    cuts, fetches = list(source.cuts), []
    for dim, (rows, points) in sorted(chosen.items()):
        cut = source.cuts[dim]
        assert cut is not None
        parts = len(cut.points) - 1
        if cut.axis in call.wanted:
            points = call.wanted[cut.axis]
        elif len(rows) < parts:
            raise call.too_few(len(rows), parts)
        elif not full(points):
            points = even(len(rows), parts)
        wanted = [rows[a:b] for a, b in itertools.pairwise(points)]
        fetch = listed(dim, cut, wanted, fill)
        cuts[dim] = Cut(cut.axis, points)
        if not fetch.trivial:
            fetches.append(fetch)
    output = Layout(call.outputs[0], tuple(cuts))
    return Step((output,), {"self": tuple(fetches)} if fetches else {}, axes=output.axes)


def slice_(call: Call) -> Step:
    source = call.tensor("self")
    dim = call.integer("dim") % len(source.shape)
    if dim not in source.cut_dims:
        return _with_rows(call, {})
    rows = sliced(call, source.shape[dim])
    inner = (bisect_left(rows, point) for point in _points(call, dim)[1:-1])  # where the owner changes
    return _with_rows(call, {dim: Picked(rows, (0, *inner, len(rows)))})


def sliced(call: Call, size: int) -> range:
    """Returns the rows that a slice or narrow picks.

    Args: `size` is the number of rows of the source.
    """
    start, end = call.get("start"), call.get("end")
    if call.operation == "aten.narrow":
        first = call.integer("start") % size
        return range(first, first + call.integer("length"))
    bounds = slice(
        start if isinstance(start, int) else None,
        end if isinstance(end, int) else None,
        call.integer("step", 1),
    )
    return range(size)[bounds]


def select(call: Call) -> Step:
    """Returns the Step that picks one row and drops its dimension.

    Returns: along a cut dimension the row is fetched by every rank.
    """
    source, shape = call.tensor("self"), call.outputs[0]
    dim = call.integer("dim") % len(source.shape)
    cut = source.cuts[dim]
    cuts = tuple(c for i, c in enumerate(source.cuts) if i != dim)
    if cut is None:
        return Step((Layout(shape, cuts),), axes=source.axes)
    row = call.integer("index") % source.shape[dim]
    fetch = gather(dim, cut, row, row + 1)
    return Step((Layout(shape, cuts),), {"self": (fetch,)}, axes=source.axes)


def flip(call: Call) -> Step:
    source = call.tensor("self")
    dims = set(call.dims("dims", len(source.shape))) & set(source.cut_dims)
    backwards = {dim: range(source.shape[dim] - 1, -1, -1) for dim in dims}
    return _with_rows(call, {dim: Picked(rows, _points(call, dim)) for dim, rows in backwards.items()})


def roll(call: Call) -> Step:
    """Returns the Step of a roll along named dimensions.

    Raises: NoRule where it rolls the flattened tensor.
    """
    source = call.tensor("self")
    dims = call.get("dims", ())
    if not dims:
        raise call.refuse("a roll of the flattened tensor", "a roll along named dimensions")
    named = call.dims("dims", len(source.shape))
    shifts = call.integers("shifts", len(named))
    total: dict[int, int] = {}
    for dim, shift in zip(named, shifts, strict=True):
        total[dim] = total.get(dim, 0) + shift
    chosen = {}
    for dim in set(total) & set(source.cut_dims):
        size = source.shape[dim]
        rows = [(row - total[dim]) % size for row in range(size)]
        chosen[dim] = Picked(rows, _points(call, dim))
    return _with_rows(call, chosen)


def pad(call: Call) -> Step:
    source = call.tensor("self")
    amounts = call.integers("pad", 0)
    mode = call.get("mode", "constant")
    value = call.get("value", 0.0)
    fill = float(value) if isinstance(value, int | float) else 0.0
    chosen = {}
    for i in range(len(amounts) // 2):
        dim = len(source.shape) - 1 - i
        if dim in source.cut_dims:
            rows = padded(str(mode), source.shape[dim], amounts[2 * i], amounts[2 * i + 1])
            inner = (point + amounts[2 * i] for point in _points(call, dim)[1:-1])
            chosen[dim] = Picked(rows, (0, *inner, len(rows)))
    return _with_rows(call, chosen, fill)


def padded(mode: str, size: int, low: int, high: int) -> list[int]:
    """Returns the source row of every row after padding; -1 where the row is filled.

    Args: `mode` is torch's name; `low` and `high` rows are added before and behind, negative numbers crop.
    """
    return [_source(mode, row, size) for row in range(-low, size + high)]


def _source(mode: str, row: int, size: int) -> int:
    if 0 <= row < size:
        return row
    if mode == "constant":
        return -1
    if mode == "circular":
        return row % size
    if mode == "replicate":
        return min(max(row, 0), size - 1)
    return -row if row < 0 else 2 * (size - 1) - row


def concatenate(call: Call) -> Step:
    """Returns the Step of a concatenation or stack.

    Returns: the parts are aligned; along a cut dimension every part is re-cut to even shards of the whole.
    Raises: NoRule where the parts are cut along different dimensions.
    """
    parts = list(call.tensors())
    shape, stacked = call.outputs[0], call.operation == "aten.stack"
    ndim, dim = len(shape) - stacked, call.integer("dim") % len(shape)
    if any(len(layout.shape) != ndim for _, layout in parts):
        raise call.refuse("its parts differ in dimensions")
    found = {i: c for _, layout in reversed(parts) for i, c in enumerate(layout.cuts) if c is not None}
    found = {i: Cut(c.axis, call.wanted.get(c.axis, c.points)) for i, c in found.items()}
    if len({cut.axis for cut in found.values()}) < len(found):
        raise call.refuse("its parts are cut along different dimensions")
    along = None if stacked else found.pop(dim, None)
    fetches: dict[str, tuple[Fetch, ...]] = {}
    for name, layout in parts:
        fetches[name] = aligned(call, layout if stacked else layout.with_cut(dim, None), found)
    cuts = [found.get(i) for i in range(ndim)]
    if stacked:
        cuts.insert(dim, None)
    if along is not None:
        target = Cut(along.axis, call.wanted.get(along.axis, even(shape[dim], len(along.points) - 1)))
        cuts[dim] = target
        for name, needed in zip((n for n, _ in parts), _parts(call, parts, dim, target), strict=True):
            fetches[name] = (*fetches[name], needed)
    output = Layout(shape, tuple(cuts))
    return Step((output,), {name: made for name, made in fetches.items() if made}, axes=output.axes)


def _parts(call: Call, parts: Sequence[tuple[str, Layout]], dim: int, target: Cut) -> Iterator[Fetch]:
    """Yields what each rank takes of every part, so that its rows of the whole follow each other."""
    if target.axis not in call.wanted and not full(target.points):
        raise call.too_few(target.size, len(target.points) - 1)
    offset = 0
    for _, layout in parts:
        size = layout.shape[dim]
        needs = [
            (min(max(a - offset, 0), size), min(max(b - offset, 0), size))
            for a, b in zip(target.points, target.points[1:], strict=False)
        ]
        cut = layout.cuts[dim]
        if cut is not None:
            if cut.axis != target.axis:
                raise call.refuse("its parts are cut along different dimensions")
            yield intervals(dim, cut, needs)
        else:
            whole = intervals(dim, Cut(target.axis, (0, size)), needs)
            yield Fetch(dim, target.axis, None, size, whole.runs, whole.sizes)
        offset += size


def split(call: Call) -> Step:
    """Returns the Step of a split, chunk or unbind along a dimension that is not cut.

    Raises: NoRule where its dimension is cut; slices have a rule for that.
    """
    source = call.tensor("self")
    dim = call.integer("dim") % len(source.shape)
    unbound = call.operation == "aten.unbind"
    if dim in source.cut_dims:
        raise call.refuse("it splits along a dimension that is cut", "slices, or a gather before it")
    cuts = tuple(c for i, c in enumerate(source.cuts) if not (unbound and i == dim))
    return Step(tuple(Layout(shape, cuts) for shape in call.outputs), axes=source.axes)


SPLITS: Final = ("split", "split_with_sizes", "chunk", "unbind", "tensor_split")

ROWS: Final[Mapping[str, Rule]] = {
    "aten.slice": slice_,
    "aten.narrow": slice_,
    "aten.select": select,
    "aten.flip": flip,
    "aten.roll": roll,
    "aten.pad": pad,
    "aten.constant_pad_nd": pad,
    "aten.cat": concatenate,
    "aten.concat": concatenate,
    "aten.stack": concatenate,
} | {f"aten.{name}": split for name in SPLITS}
