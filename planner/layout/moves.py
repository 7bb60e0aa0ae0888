"""Operations that only place elements elsewhere: where a cut dimension of their source comes to lie.

A move is asked for one cut of the source. It answers with the dimension and the cut of each result, or with None
where the parts of the result would not be what the ranks hold. Whole tensors and addends pass through as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod
from typing import Final

from planner.layout.factor import shape_of
from planner.layout.local_graph import ALIKE, LocalOperation
from planner.layout.lying import DimCut, GroupLayout, Mesh
from planner.spatial import Call, Operation, call_of, whole

Moved = tuple[tuple[int, DimCut], ...]  # one entry a result
Move = Callable[[Call, int, DimCut], Moved | None]


def reshape(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies after a view: the dimension whose leading product divides the blocks of the cut."""
    if "dtype" in call.arguments:
        return None
    return _single(reshaped(shape_of(call, source_of(call)), call.outputs[0], dim, cut))


def reshaped(before: Sequence[int], after: Sequence[int], dim: int, cut: DimCut) -> tuple[int, DimCut] | None:
    """Returns the dimension and the cut that a cut becomes where a tensor takes another shape.

    Args: `cut` is of dimension `dim` of the shape `before`.
    """
    low, high, to_low, to_high = _group(before, after, dim)
    outer, inner = prod(before[low:dim]), prod(before[dim + 1 : high])
    blocks = outer * cut.blocks
    lead = 1
    for i in range(to_low, to_high):
        behind = prod(after[i + 1 : to_high])
        points = [point * inner for point in cut.points]
        if blocks % lead == 0 and after[i] > 1 and not any(point % behind for point in points):
            found = DimCut(cut.axes, tuple(point // behind for point in points), blocks // lead)
            if found.size == after[i]:
                return i, found
        lead *= after[i]
    return None


def _group(before: Sequence[int], after: Sequence[int], dim: int) -> tuple[int, int, int, int]:
    """Returns the runs of dimensions before and after, of equal product, that hold a dimension."""
    i = j = 0
    while True:
        low, to_low = i, j
        if j == len(after):  # dimensions of one element are left of the source
            return low, len(before), j, j
        m, n = before[i], after[j]
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m, i = m * before[i], i + 1
            else:
                n, j = n * after[j], j + 1
        if low <= dim < i:
            return low, i, to_low, j


def permute(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies after a change of the order of dimensions."""
    return _single((_order(call).index(dim), cut))


def _order(call: Call) -> list[int]:
    """Returns the dimension of the source that each dimension of the result is."""
    rank = len(call.outputs[0])
    if call.operation == "aten.permute":
        return list(call.dims("dims", rank))
    order = list(range(rank))
    first, second = _pair(call, rank)
    order[first], order[second] = order[second], order[first]
    return order


def _pair(call: Call, rank: int) -> tuple[int, int]:
    if call.operation == "aten.t":
        return 0, rank - 1
    return call.integer("dim0") % rank, call.integer("dim1") % rank


def unsqueeze(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies once there is a dimension more."""
    new = call.integer("dim") % len(call.outputs[0])
    return _single((dim + (new <= dim), cut))


def squeeze(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies once dimensions of one element are gone; None for one of these."""
    shape = shape_of(call, "self")
    gone = [i for i in call.dims("dim", len(shape)) if shape[i] == 1]
    if dim in gone:
        return None
    return _single((dim - sum(i < dim for i in gone), cut))


def expand(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies once other dimensions have been repeated."""
    after = dim + len(call.outputs[0]) - len(shape_of(call, "self"))
    return _single((after, cut) if call.outputs[0][after] == cut.size else None)


def select(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies once one element of another dimension is taken, or each of them."""
    chosen = call.integer("dim") % len(shape_of(call, "self"))
    if dim == chosen:
        return None
    return ((dim - (chosen < dim), cut),) * len(call.outputs)


def narrow(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns where a cut lies once a range of another dimension is taken."""
    shape = shape_of(call, "self")
    return _single((dim, cut) if call.outputs[0][dim] == shape[dim] else None)


def pieces(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns how each piece is cut: pieces of whole blocks stay cut, all others do not."""
    at = call.integer("dim") % len(shape_of(call, "self"))
    if dim != at:
        return ((dim, cut),) * len(call.outputs)
    block = cut.points[-1]
    if any(shape[dim] % block for shape in call.outputs):
        return None
    return tuple((dim, DimCut(cut.axes, cut.points, shape[dim] // block)) for shape in call.outputs)


def same(call: Call, dim: int, cut: DimCut) -> Moved | None:
    """Returns the cut itself: the result has the shape of the source."""
    return _single((dim, cut))


def _single(found: tuple[int, DimCut] | None) -> Moved | None:
    return None if found is None else (found,)


def moved(operation: Operation, call: Call, inputs: Mapping[str, GroupLayout], mesh: Mesh) -> LocalOperation:
    """Returns an operation that places elements: its source's cuts come along, or are gathered.

    Args: `inputs` has the layouts of its tensors by argument.
    """
    source = source_of(call)
    want = inputs[source]
    found: dict[int, Moved] = {}
    taken: set[tuple[int, int]] = set()  # result, dimension
    for dim, cut in enumerate(want.cuts):
        to = None if cut is None else MOVES[operation.operation](call, dim, cut)
        if to is None or not taken.isdisjoint(places := {(i, at) for i, (at, _) in enumerate(to)}):
            want = want.with_dim(dim, None)  # of two cuts that would come to lie along one dimension, too
        else:
            found[dim] = to
            taken |= places
    outputs = []
    for i, shape in enumerate(operation.outputs):
        cuts: list[DimCut | None] = [None] * len(shape)
        for to in found.values():
            dim, cut = to[i]
            cuts[dim] = cut
        outputs.append(GroupLayout(shape, tuple(cuts), want.partial, want.owed))
    others = {argument: layout for argument, layout in inputs.items() if argument != source}
    return LocalOperation(operation, (ALIKE,) * len(mesh), {source: want} | others, tuple(outputs))


def as_read_turned(placed: Sequence[LocalOperation], parameters: Set[str]) -> tuple[LocalOperation, ...]:
    """Returns operations of which those that turn a parameter leave it in the parts that its readers have it in.

    A parameter is left whole where its readers do not agree, and each takes its part then.
    Args: `placed` are all of a model; `parameters` are the trained ones.
    """
    turning = (done for done in placed if done.operation.operation in TURNING)
    if not any(parameters & set(done.operation.reads()) for done in turning):
        return tuple(placed)
    readers: dict[str, list[tuple[LocalOperation, GroupLayout]]] = defaultdict(list)
    for done in placed:
        for argument, name in done.reads():
            readers[name].append((done, done.inputs[argument]))
    found = {}
    for name in parameters:
        turned = {done.operation.name: _read_as(done, readers) for done, _ in readers[name]}
        cuts = {layout.cuts for done, layout in readers[name] if turned[done.operation.name] is None}
        cuts |= {own.inputs[source].cuts for own in turned.values() if own for source in own.inputs}
        if len(cuts) == 1:
            found.update({done: own for done, own in turned.items() if own is not None})
    return tuple(found.get(done.operation.name, done) for done in placed)


def _read_as(
    done: LocalOperation, readers: Mapping[str, Sequence[tuple[LocalOperation, GroupLayout]]]
) -> LocalOperation | None:
    """Returns an operation that turns a tensor for one kind of reader as that reader has it; None for any other."""
    wants = {layout for _, layout in readers.get(done.operation.name, ())}
    if done.operation.operation not in TURNING or len(wants) != 1 or (want := wants.pop()).partial:
        return None
    (source,) = done.inputs
    call = call_of(done.operation, {name: whole(done.inputs[source].shape) for _, name in done.reads()})
    cuts: list[DimCut | None] = [None] * len(want.cuts)
    for dim, at in enumerate(_order(call)):
        cuts[at] = want.cuts[dim]
    held = GroupLayout(done.inputs[source].shape, tuple(cuts), frozenset(), want.owed)
    return replace(done, inputs={source: held}, outputs=(want,))


def source_of(call: Call) -> str:
    """Returns the name of the argument that an operation places elsewhere."""
    return "self" if "self" in call.arguments else "input"


def _named(text: str, move: Move) -> dict[str, Move]:
    return {f"aten.{name}": move for name in text.split()}


TURNING: Final = ("aten.transpose", "aten.permute", "aten.t")
MOVES: Final[Mapping[str, Move]] = (
    _named("view reshape flatten unflatten _unsafe_view view_as reshape_as", reshape)
    | dict.fromkeys(TURNING, permute)
    | _named("unsqueeze", unsqueeze)
    | _named("squeeze", squeeze)
    | _named("expand expand_as", expand)
    | _named("select unbind", select)
    | _named("slice narrow", narrow)
    | _named("chunk split split_with_sizes", pieces)
    | _named("alias clone contiguous detach lift_fresh_copy", same)
)
