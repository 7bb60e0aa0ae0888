"""The ranks that share a sample, within a plan: their groups, their stages on shards, and what they count once.

All stages of a plan on shards: how Values lie between them, and what each rank of a group does.

One shard by itself, for the profiler: it computes as it will among its neighbours, whose messages are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch.distributed as dist
from torch import Tensor

from planner.capture import StageModule
from planner.errors import BadPlan
from planner.model import ModelGraph
from planner.plan import Plan, shared_from
from planner.spatial import SPACE, Grid, Grids, Layout, Operation, check_grid, coordinates, middle_of, rank_at
from runtime.data import Region, Rows
from runtime.spatial.analyse import Analysed, analyse, inputs_of, value_shapes
from runtime.spatial.group import GroupWire, Message, SampleGroup
from runtime.spatial.group import Operation as Reduction
from runtime.spatial.shard import shard
from runtime.world import RankMesh as Places
from runtime.world import World


@dataclass(frozen=True)
class Sharing:
    """One rank's part in a group; `place` is its position there."""

    analysed: Sequence[Analysed]  # one a stage
    group: dist.ProcessGroup
    place: int

    def shard(self, modules: Mapping[int, StageModule], owing: Collection[int] = ()) -> None:
        """Rewrites a rank's stages for its shards, in place.

        Random operations must have been keyed, and weight gradients must not have been put off yet.
        Args: `modules` by number of stage; `owing` are stages whose convolutions will put off their weight
            gradients.
        """
        wire = GroupWire(self.group)
        for stage, module in sorted(modules.items()):
            mesh = SampleGroup(self.analysed[stage].grid, wire)
            shard(module, self.analysed[stage], mesh, overlap=stage not in owing)

    def of_others(self, plan: Plan, every: Sequence[StageModule], micro: int, graph: ModelGraph) -> Sharing:
        """Returns the same group for other operations of the plan's stages, as of an evaluation.

        Args: `every` are all stages of the plan, of the model `graph`; `micro` is their micro-batch, which may be
            another one.
        Raises: BadPlan where they take another part of the batch, NoRule for what cannot be done on shards.
        """
        if shares_of(plan) and micro % plan.axes.spatial:
            raise BadPlan(f"{plan.axes.spatial} ranks cannot share {micro} samples evenly")
        made = replace(self, analysed=_analysed(plan, every))
        for before, after in zip(self.analysed, made.analysed, strict=True):
            for name, layout in after.batch.items():
                if before.batch.get(name, layout).cuts != layout.cuts:
                    raise BadPlan(f"in evaluation mode another part of '{name}' is needed: use spatial: 1")
        return made

    def parts(self, stages: Sequence[int]) -> dict[str, Rows]:
        """Returns the rows of the batch on which these stages compute, where all of them want the same rows.

        Args: `stages` are numbers of stages that live on this rank.
        Returns: rows along each cut dimension, by the name of the Value; Values that are used whole are left
            out.
        """
        found: dict[str, Rows] = {}
        for analysed in (self.analysed[stage] for stage in stages):
            for name, layout in analysed.batch.items():
                region = layout.region(coordinates(self.place, analysed.grid))
                rows = tuple((dim, *region[dim]) for dim in layout.cut_dims)
                found[name] = rows if found.get(name, rows) == rows else ()
        return {name: rows for name, rows in found.items() if rows}

    def region(self, stages: Sequence[int], samples: Collection[str]) -> Region:
        """Returns the part in space of every sample that is enough for this rank.

        Args: `stages` are those that live on this rank; `samples` names the inputs of the batch.
        Returns: first row and end along every spatial dimension; empty where shapes differ, so that no one
            region serves.
        """
        cut = {r for each in self.analysed for r in self._regions(each, samples, whole=False)}
        wholes = {r for stage in stages for r in self._regions(self.analysed[stage], samples, whole=True)}
        found = wholes or cut
        return found.pop() if len(cut) == len(found) == 1 else ()

    def _regions(self, analysed: Analysed, samples: Collection[str], *, whole: bool) -> Iterator[Region]:
        for name in samples:
            layout = analysed.batch.get(name)
            if layout is not None and layout.whole == whole:
                yield layout.region(coordinates(self.place, analysed.grid))[2:]

    def uncounted(self, stages: Sequence[int]) -> frozenset[str]:
        """Returns the parameters whose gradients this rank must not add to the sum over its group.

        Args: `stages` are those that live on this rank.
        Returns: names; none for the first rank of the group.
        """
        return uncounted({stage: self.analysed[stage] for stage in stages}, self.place)


def shares_of(plan: Plan) -> str:
    """Returns the layer from which on ranks share whole samples instead of space.

    Args: `plan` has a spatial axis.
    Returns: the layer's name; empty where samples are never shared.
    Raises: BadPlan where another stage than the last shares samples, or the micro-batch cannot be shared
        evenly.
    """
    found = [shared_from(stage) for stage in plan.stages]
    if any(found[:-1]):
        raise BadPlan("samples are shared in a stage that hands on what it makes: only the last one may")
    if found[-1] and plan.batch.micro % plan.axes.spatial:
        raise BadPlan(f"{plan.axes.spatial} ranks cannot share {plan.batch.micro} samples evenly")
    return found[-1]


def sharing(plan: Plan, every: Sequence[StageModule], places: Places, world: World) -> Sharing | None:
    """Makes the groups of ranks that share samples, and works out their stages on shards.

    All ranks must call it, since every group is made by everybody in one order.
    Args: `every` are all stages of the plan; `places` tells who is where.
    Returns: this rank's part; None where the plan has no spatial axis.
    Raises: BadPlan where stages are compiled or samples cannot be shared.
    """
    if plan.axes.spatial == 1:
        return None
    if plan.execution == "compiled":
        raise BadPlan("stages on shards are not compiled: use execution: eager")
    analysed = _analysed(plan, every)
    here = places.by_rank[world.rank]
    mine: dist.ProcessGroup | None = None
    for data, pipeline in sorted({(p.data, p.pipeline) for p in plan.places}):
        members = sorted(
            (p for p in plan.places if (p.data, p.pipeline) == (data, pipeline)), key=lambda p: p.spatial
        )
        group = world.new_group([p.rank for p in members])
        if group is not None:
            mine = group
    assert mine is not None
    assert dist.get_rank(mine) == here.spatial, "a group keeps the order in which its ranks are named"
    return Sharing(analysed, mine, here.spatial)


def _analysed(plan: Plan, every: Sequence[StageModule]) -> list[Analysed]:
    return analyse_stages(
        every,
        [stage.spatial for stage in plan.stages],
        plan.axes.spatial,
        [stage.gather_before for stage in plan.stages],
        [{x.before: x.spatial for x in stage.regrid if not x.samples} for stage in plan.stages],
        shares_of(plan),
    )


def analyse_stages(
    modules: Sequence[StageModule],
    grids: Sequence[Grid],
    ranks: int,
    gathers: Sequence[str] = (),
    turns: Sequence[Mapping[str, Grid]] = (),
    shares: str = "",
) -> list[Analysed]:
    """Analyses the stages of a plan in order, each with the layouts that earlier ones deliver.

    Values pass between ranks of the same place in their groups, as they lie: all stages have groups of
    `ranks`. A stage on another grid changes the grid of what comes, and a stage without a grid gathers it, so
    that every rank computes all of it. What a stage with a grid has made whole stays whole.
    Args: `grids` has one grid a stage, empty for none; `gathers` names the layer before which a stage
        gathers; `turns` has the grids from other layers of a stage on; `shares` is the layer of the last
        stage from which on ranks share the samples.
    Returns: one analysis a stage.
    Raises: BadPlan where a layer is not in its stage or ranks cannot share a sample evenly.
    """
    if shares and shares not in modules[-1].layers:
        raise BadPlan(f"samples are shared from '{shares}' on, which is not in the last stage")
    delivered: dict[str, Layout] = {}
    grid_of: dict[str, Grid] = {}
    turners: dict[str, Operation] = {}
    around: set[str] = set()
    found = []
    for index, (module, grid) in enumerate(zip(modules, grids, strict=True)):
        where = f"stage {index}"
        known = {name: delivered[name] for name in module.inputs if name in delivered}
        gather, turning = gathers[index] if gathers else "", turns[index] if turns else {}
        for each in (grid, *turning.values()):
            _check(module, each, ranks, where)
        for name in (gather, *turning):
            if name and name not in module.layers:
                raise BadPlan(f"{where}: gathers or re-splits before '{name}', which is not in it")
        before = ([gather] if gather else []) if grid else module.layers
        lying = {name: grid_of[name] for name in known}
        last = index == len(modules) - 1
        used = Grids(
            ranks, grid or (ranks,), turning, lying, shares if last else "", turners=turners, around=around
        )
        analysed = analyse(module, used.first, known, before, used, entering=bool(grid))
        found.append(analysed)
        delivered |= {name: x for name, x in analysed.outputs.items() if grid or not x.whole}
        grid_of |= analysed.grids
        turners |= analysed.turners
        around |= analysed.around
    return found


def _check(module: StageModule, grid: Grid, ranks: int, where: str) -> None:
    if grid and ranks % prod(grid):
        raise BadPlan(f"{where}: {ranks} ranks cannot share {prod(grid)} parts of a sample evenly")
    shapes = value_shapes(module) if grid else {}
    given = inputs_of(module) if grid else []
    for name in [
        name for name in given if len(shapes[name]) > SPACE
    ] or given:  # others lie whole beside them
        check_grid(shapes[name], grid, f"{where}, '{name}'")


def uncounted(analysed: Mapping[int, Analysed], place: int) -> frozenset[str]:
    """Returns the parameters whose gradients a rank must not add to the sum over its group, since the first rank does.

    Args: `analysed` by number of stage, of those that live on the rank; `place` is its position in the group.
    Returns: names; none where `place` is 0.
    Raises: BadPlan where a parameter is used on shards in one stage and on whole samples in another.
    """
    if place == 0:
        return frozenset()
    counted = frozenset(name for each in analysed.values() for name in each.partial)
    alike = frozenset(name for each in analysed.values() for name in each.uncounted)
    mixed = sorted(counted & alike)
    if mixed:
        raise BadPlan(f"'{mixed[0]}' is used on shards in one stage and on whole samples in another")
    return alike


class Silence:
    """A wire at whose other end is nobody: what is received is zeros."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Callable[[], None]:
        for _, tensor in receives:
            tensor.zero_()
        return lambda: None

    def all_to_all(
        self, found: Tensor, sent: Tensor, found_sizes: Sequence[int], sent_sizes: Sequence[int]
    ) -> None:
        found.zero_()

    def all_reduce(self, tensor: Tensor, operation: Reduction) -> None:
        pass


class AloneShard:
    """The profiler's way to shards: rewrites a stage for one rank of a grid that has no other ranks."""

    def layouts(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout]
    ) -> Mapping[str, Layout]:
        """Returns how a stage on shards lays out what it makes.

        Args: `grid` has the parts along each axis; `delivered` has the layouts of the Values that come cut.
        Returns: the layout of each output, by the name of its Value.
        """
        return analyse(module, grid, delivered).outputs

    def shard(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout], *, owing: bool
    ) -> None:
        """Rewrites a stage for the shard in the middle, which has neighbours on both sides where any has.

        Args: `module` is changed in place; with `owing` its convolutions stay nodes that can put off their
            weight gradients.
        """
        middle = rank_at(middle_of(grid), grid)
        mesh = SampleGroup(grid, Silence(middle, prod(grid)))
        shard(module, analyse(module, grid, delivered), mesh, overlap=not owing)
