"""A run of operations on shards: the layout of every tensor, and where tensors are gathered.

An operation whose tensors are all whole is computed alike by every rank. An operation that has no rule for what it
is given, or too few rows for the ranks, is computed alike on gathered tensors. Behind one without a rule, samples are
cut again by the next operation that slides over space; see `cut_again`.

The grid may change on the way: from a layer on, what lies on another grid is re-split before it is read. Ranks may
also share the samples from a layer on, each with whole samples of its own; see `sample_shares.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from planner.spatial import sample_shares
from planner.spatial.layout import Layout, along, entry, whole
from planner.spatial.operation import GETITEM, INPUT, STATE, TARGET, Operation, Ref
from planner.spatial.regrid import ALONE, Grid, Grids, Resplit, cut_again, mesh_of, resplit, turned
from planner.spatial.rows_needed import Fetch, gathered
from planner.spatial.rule import PARTS, NoRule, Step, TooFew, call_of
from planner.spatial.rules.pointwise import AFTER, IN_PLACE
from planner.spatial.rules.table import rule
from planner.spatial.sample_shares import wider


@dataclass(frozen=True, slots=True)
class Placed:
    """An operation with its Step; without a Step every rank does the same, on tensors gathered first."""

    operation: Operation
    step: Step | None
    inputs: Mapping[str, Layout]  # of the tensors it reads, re-split, before they are gathered
    gathers: Mapping[str, tuple[Fetch, ...]] = field(default_factory=dict)  # by name of the tensor
    resplits: Mapping[str, Resplit] = field(default_factory=dict)  # by name of the tensor
    grid: Grid = ()  # of all ranks, on which it is computed
    shared: bool = False  # on whole samples, of which each rank has its own
    around: bool = False  # it has no rule: its tensors were gathered, or made of those that were


@dataclass(frozen=True, slots=True)
class Segment:
    """Placed operations, and the layout and grid of every tensor that they are given or make."""

    placed: tuple[Placed, ...]
    layouts: Mapping[str, tuple[Layout, ...]]  # of every tensor, given or made
    grids: Mapping[str, Grid]  # of all ranks, on which each of them lies
    turners: Mapping[str, Operation]  # what moved space elsewhere than behind samples and channels, by tensor
    around: frozenset[str]  # tensors gathered for an operation without a rule, or made of such


def propagate(
    operations: Sequence[Operation],
    given: Mapping[str, Layout],
    gather_before: Collection[str] = (),
    grids: Grids = ALONE,
) -> Segment:
    """Returns the operations placed on shards, with the layouts of all tensors.

    Args: `given` has the layouts of what the operations are given, missing tensors are whole; layers in
        `gather_before` and everything after them read gathered tensors; where `grids` shares samples, the batch is a
        multiple of the ranks, see `wider`.
    Raises: NoRule, which names the operation that cannot be done on shards.
    """
    layouts: dict[str, tuple[Layout, ...]] = {name: (layout,) for name, layout in given.items()}
    lying = {name: grids.lying.get(name, grids.mesh) for name in given}
    now = grids.first
    made = {operation.name: operation for operation in operations}
    samples: dict[str, int | None] = dict(grids.samples)
    inside: set[str] = set()  # tensors made where samples are shared
    around = set(grids.around)
    turners = dict(grids.turners)
    placed = []
    ended = sharing = False
    for operation in operations:
        ended = ended or operation.layer in gather_before
        sharing = sharing or (bool(grids.shares) and operation.layer == grids.shares)
        now = grids.turns.get(operation.layer, now)
        mesh = (grids.ranks,) if sharing else mesh_of(now, grids.ranks)
        reads = {name: layouts[name][0] for name in operation.reads() if name in layouts}
        if not all(layout.whole for layout in reads.values()):
            check_write(operation, made, reads, sample_shares.SHARE if sharing else PARTS)
        if sharing:
            moves = _shared(operation, reads, lying, samples, inside, grids.ranks, made)
        else:
            moves = {
                name: resplit(
                    layout, lying[name], () if ended else now, grids.ranks, operation.layer, turners.get(name)
                )
                for name, layout in reads.items()
                if lying[name] != mesh and not layout.whole and operation.operation != GETITEM
            }
            moves |= {} if ended else cut_again(operation, reads, around, lying, now, grids.ranks)
        reads |= {name: move.target for name, move in moves.items()}
        if sharing:
            done = _on_samples(operation, reads, moves)
            if operation.operation != GETITEM or inside.issuperset(reads):
                inside.add(operation.name)
        else:
            done = _place(operation, reads, moves, ended)
        done = replace(done, resplits=moves, grid=mesh, shared=sharing)
        if done.around or (done.step is None and not around.isdisjoint(reads)):
            around.add(operation.name)
        placed.append(done)
        samples[operation.name] = operation.samples[0] if operation.samples else None
        layouts[operation.name] = _outputs(operation, done, layouts)
        lying[operation.name] = _lying(operation, lying, mesh)
        if any(map(turned, layouts[operation.name])):
            turners[operation.name] = next((turners[x] for x in reads if x in turners), operation)
    return Segment(tuple(placed), layouts, lying, turners, frozenset(around))


def _lying(operation: Operation, lying: Mapping[str, Grid], mesh: Grid) -> Grid:
    """Returns the grid on which an operation's result lies; a part of a tensor lies where the tensor does."""
    source = operation.arguments.get("self")
    return lying[source.name] if operation.operation == GETITEM and isinstance(source, Ref) else mesh


def cut_model(
    operations: Sequence[Operation],
    grid: Sequence[int],
    gather_before: Collection[str] = (),
    turns: Mapping[str, Grid] | None = None,
    shares: str = "",
) -> Segment:
    """Returns a whole model over a grid: samples cut evenly behind the channels, parameters whole.

    Args: `turns` has the grids from other layers on, by the layer's name; `shares` is the layer from which on each
        rank has samples of its own; layers in `gather_before` read gathered tensors.
    Raises: NoRule, which names the operation that cannot be done on shards.
    """
    ranks = prod(grid)
    if shares:
        operations = [wider(x, ranks) for x in operations]
    given = {
        operation.name: entry(operation.outputs[0], grid)
        if operation.operation == INPUT
        else whole(operation.outputs[0])
        for operation in operations
        if operation.operation in (INPUT, TARGET, STATE)
    }
    targets = {x.name: x.outputs[0] for x in operations if x.operation == TARGET}
    inner = [x for x in operations if x.name not in given]
    samples = {x.name: x.samples[0] for x in operations if x.name in given and x.samples}
    grids = Grids(ranks, tuple(grid), turns or {}, shares=shares, samples=samples)
    plain = not (gather_before or turns or shares)
    return with_targets(inner, given, targets if plain else {}, gather_before, grids)[0]


def with_targets(
    operations: Sequence[Operation],
    given: Mapping[str, Layout],
    targets: Mapping[str, tuple[int, ...]],
    gather_before: Collection[str],
    grids: Grids,
) -> tuple[Segment, Mapping[str, Layout]]:
    """Returns a segment whose targets are cut as the samples are if all operations on them allow it, else whole.

    Args: as those of `propagate`; `targets` has the shape of each target.
    Returns: the segment, and the layouts of what it was given in the end.
    """
    here = (name for name in given if grids.lying.get(name, grids.mesh) == grids.mesh)
    leading = [given[name] for name in here if not given[name].whole]
    cut = {
        name: layout
        for name, shape in targets.items()
        if (layout := next((x for x in (along(shape, each) for each in leading) if not x.whole), None))
    }
    if cut:
        try:
            trial = propagate(operations, {**given, **cut}, gather_before, grids)
        except NoRule:
            pass
        else:
            if not any(name in cut for placed in trial.placed for name in placed.gathers):
                return trial, {**given, **cut}
    return propagate(operations, given, gather_before, grids), given


def check_write(
    operation: Operation, made: Mapping[str, Operation], reads: Mapping[str, Layout], parts: str
) -> None:
    """Raises NoRule for a write through a view, which would be lost where the view has become a copy."""
    name = operation.operation
    if name == AFTER:
        target, *writes = operation.reads()
        for write in writes:
            if reads[write] != reads[target]:
                raise _lost_write(made[write], parts)
    if not name.endswith("_") or name.endswith("__"):
        return
    given = operation.arguments["self"]
    source = made.get(given.name) if isinstance(given, Ref) else None
    if source is None or source.operation != "aten.clone":
        raise _lost_write(operation, parts)
    if name not in IN_PLACE:
        raise _lost_write(operation, parts, "it has no rule in place")


def _lost_write(operation: Operation, parts: str, why: str = "it writes into a part of a tensor") -> NoRule:
    return NoRule(
        f"{operation.operation} on {parts}: {why}",
        where=operation.place,
        allowed="whole samples, or the same operation out of place",
        layer=operation.layer,
    )


def _place(
    operation: Operation,
    inputs: Mapping[str, Layout],
    moved: Collection[str],
    ended: bool,
) -> Placed:
    if moved and operation.operation in (*IN_PLACE, AFTER):  # into what would be a copy
        raise _lost_write(operation, PARTS)
    if operation.operation == GETITEM or all(layout.whole for layout in inputs.values()):
        return Placed(operation, None, inputs)
    around = False
    if not ended:
        try:
            return Placed(operation, rule(call_of(operation, inputs)), inputs)
        except NoRule as refused:
            around = not isinstance(refused, TooFew)
    if operation.operation in (*IN_PLACE, AFTER):  # into what would be a gathered copy
        raise _lost_write(operation, PARTS)
    gathers = {name: gathered(layout) for name, layout in inputs.items() if not layout.whole}
    return Placed(operation, None, inputs, gathers, around=around)


def _shared(
    operation: Operation,
    reads: Mapping[str, Layout],
    lying: Mapping[str, Grid],
    samples: Mapping[str, int | None],
    inside: Collection[str],
    ranks: int,
    made: Mapping[str, Operation],
) -> dict[str, Resplit]:
    found: dict[str, Resplit] = {}
    for name, layout in reads.items() if operation.operation != GETITEM else ():
        if layout.whole or name not in inside:
            move = sample_shares.moved(
                layout, samples.get(name), lying[name], ranks, operation, made.get(name)
            )
            found |= {name: move} if move is not None else {}
    return found


def _on_samples(operation: Operation, inputs: Mapping[str, Layout], moved: Collection[str]) -> Placed:
    if moved and operation.operation in (*IN_PLACE, AFTER):
        raise _lost_write(operation, sample_shares.SHARE)
    if operation.operation == GETITEM or all(layout.whole for layout in inputs.values()):
        return Placed(operation, None, inputs)
    call = replace(call_of(operation, inputs), parts=sample_shares.SHARE)
    return Placed(operation, sample_shares.step(call, operation.samples), inputs)


def _outputs(
    operation: Operation, placed: Placed, layouts: Mapping[str, tuple[Layout, ...]]
) -> tuple[Layout, ...]:
    if operation.operation == GETITEM:
        source, index = operation.arguments["self"], operation.arguments["index"]
        assert isinstance(source, Ref) and isinstance(index, int)
        return (layouts[source.name][index],)
    if placed.step is None:
        return tuple(map(whole, operation.outputs))
    return placed.step.outputs


def cut_layers(segment: Segment) -> frozenset[str]:
    """Returns the names of the layers that compute on shards, in part at least."""
    return frozenset(placed.operation.layer for placed in segment.placed if placed.step is not None)


def ends(segment: Segment) -> Mapping[str, str]:
    """Returns the layers that gather a tensor first, each with the first operation that needs it whole."""
    return {
        placed.operation.layer: placed.operation.operation
        for placed in reversed(segment.placed)
        if placed.gathers
    }


def worked_around(segment: Segment) -> frozenset[str]:
    """Returns the layers with an operation without a rule, behind which some are computed on shards again."""
    on_shards = [i for i, placed in enumerate(segment.placed) if placed.step is not None]
    before = segment.placed[: max(on_shards, default=0)]
    return frozenset(placed.operation.layer for placed in before if placed.around)
