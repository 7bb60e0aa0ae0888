"""Finds in how many blocks the result of a linear layer is cut, so that what only places elements can follow.

A weight of queries, keys and values in one must be cut by heads within each of the three. The operations behind it
tell: of all numbers of blocks, the least is taken with which every view and every split keeps the cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from planner.layout.factor import Along
from planner.layout.families import FAMILIES
from planner.layout.lying import DimCut, parted
from planner.layout.moves import MOVES, source_of
from planner.layout.refusals import refuse_parts, refused
from planner.spatial import BINARY, GETITEM, UNARY, Call, Operation, Ref, call_of, whole

POINTWISE: Final = frozenset((*UNARY, *BINARY, "aten.dropout", "aten.to"))
# Of what they read they need all along a dimension, in any order of blocks; so it is gathered for them.
GATHERING: Final = frozenset(
    f"aten.{name}" for name in ("argmax", "argmin", "topk", "sort", "argsort", "layer_norm", "rms_norm")
)
DEEPEST: Final = 40  # operations in a row that are looked at

Users = Mapping[str, Sequence[Operation]]


class Behind:
    """The operations of a model by what they read, to look at what stands behind one of them."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.users = _users(operations)
        self.shapes = {x.name: x.outputs for x in operations}


class _Stop(NamedTuple):
    """The first operation that cannot keep a cut; `left` is less for one that is farther behind."""

    left: int
    operation: Operation
    words: str


def fitted(behind: Behind, operation: Operation, dim: int, axes: tuple[int, ...], parts: int) -> DimCut:
    """Returns the cut of an operation's result that all views behind it can keep.

    Args: all are those of `fitting`.
    Raises: NoRule for the first operation that cannot follow: its own where it could do nothing on parts.
    """
    found, stop = fitting(behind, operation, dim, axes, parts)
    if found is not None:
        return found
    size, words = operation.outputs[0][dim], "layers"
    if stop is not None:
        words, call = stop.words, _call(stop.operation, behind.shapes)
        if stop.operation.operation not in MOVES:
            refuse_parts(stop.operation, call)
    raise refused(operation, f"{size} columns in {parts} parts do not fit the {words} behind it")


def fitting(
    behind: Behind, operation: Operation, dim: int, axes: tuple[int, ...], parts: int
) -> tuple[DimCut | None, _Stop | None]:
    """Returns the cut of an operation's result that all views behind it can keep.

    Args: `behind` has the whole model; `dim` is the dimension of the result that is cut into `parts`.
    Returns: the cut; or None and the first operation that cannot follow.
    """
    size = operation.outputs[0][dim]
    farthest: _Stop | None = None
    for blocks in (n for n in range(1, size // parts + 1) if size % n == 0):
        points = parted(size // blocks, parts)
        if points is None:
            continue
        cut = DimCut(axes, points, blocks)
        stopped = _stopped(operation.name, 0, dim, cut, behind.users, behind.shapes, DEEPEST)
        if stopped is None:
            return cut, None
        farthest = stopped if farthest is None or stopped.left < farthest.left else farthest
    return None, farthest


def of_sequence(behind: Behind, operation: Operation, axes: tuple[int, ...], parts: int) -> DimCut | None:
    """Returns the cut of rows that are samples and positions in one: by positions, within each sample.

    Args: `operation` makes a matrix; the view behind it says how many positions a sample has.
    Returns: None where no view behind it takes samples and positions apart, or ranks outnumber the positions.
    """
    for user in behind.users.get(operation.name, ()):
        samples, positions = (*user.outputs[0], 0, 0)[:2]
        if user.operation in MOVES and samples * positions == operation.outputs[0][0] > samples > 1:
            points = parted(positions, parts)
            return None if points is None else DimCut(axes, points, samples)
    return None


def _call(operation: Operation, shapes: Mapping[str, tuple[tuple[int, ...], ...]]) -> Call:
    return call_of(operation, {x: whole(shapes[x][0]) for x in operation.reads()})


def _users(operations: Sequence[Operation]) -> Users:
    found: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        for name in dict.fromkeys(operation.reads()):
            found[name].append(operation)
    return found


def _stopped(
    name: str,
    output: int,
    dim: int,
    cut: DimCut,
    users: Users,
    shapes: Mapping[str, tuple[tuple[int, ...], ...]],
    depth: int,
) -> _Stop | None:
    """Returns the first operation that could not keep a cut; None where all can.

    Args: `depth` is how many operations in a row may follow.
    """
    for user in users.get(name, ()) if depth else ():
        follow: list[tuple[int, int, DimCut]] = []
        if user.operation == GETITEM:
            if user.arguments["index"] != output:
                continue
            follow.append((0, dim, cut))
        elif user.operation in MOVES:
            call = _call(user, shapes)
            source = user.arguments[source_of(call)]
            if not isinstance(source, Ref) or source.name != name:
                continue
            moved = MOVES[user.operation](call, dim, cut)
            if moved is None:
                return _Stop(depth, user, f"{user.operation} to {user.outputs[0]}")
            follow += [(i, at, own) for i, (at, own) in enumerate(moved)]
        elif user.operation in POINTWISE:
            at = dim + len(user.outputs[0]) - len(shapes[name][output])
            if user.outputs[0][at] == cut.size:
                follow.append((0, at, cut))
        elif user.operation not in GATHERING and not _can_share(user, name, dim, shapes):
            return _Stop(depth, user, f"{user.operation} of {shapes[name][output]}")
        for i, at, own in follow:
            stopped = _stopped(user.name, i, at, own, users, shapes, depth - 1)
            if stopped is not None:
                return stopped
    return None


def _can_share(
    user: Operation, name: str, dim: int, shapes: Mapping[str, tuple[tuple[int, ...], ...]]
) -> bool:
    """Returns whether an operation has a factor for a dimension of a tensor that it reads."""
    rule = FAMILIES.get(user.operation)
    call = _call(user, shapes)
    sides = [
        factor.side(argument)
        for factor in (rule(call) if rule is not None else ())
        for argument, read in user.named_reads()
        if read == name
    ]
    return any(isinstance(side, Along) and side.dim == dim for side in sides)
