"""All stages of a plan on shards: how Values lie between them, and what each rank of a group does.

One shard by itself, for the profiler: it computes as it will among its neighbours, whose messages are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from torch import Tensor

from planner.capture import StageModule
from planner.errors import BadPlan
from planner.spatial import SPACE, Grid, Grids, Layout, Operation, check_grid, middle_of, rank_at
from runtime.spatial.analyse import Analysed, analyse, inputs_of, value_shapes
from runtime.spatial.group import Message, SampleGroup
from runtime.spatial.group import Operation as Reduction
from runtime.spatial.shard import shard


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
        used = Grids(ranks, grid or (ranks,), turning, lying, shares if last else "", turners=turners)
        analysed = analyse(module, used.first, known, before, used, entering=bool(grid))
        found.append(analysed)
        delivered |= {name: x for name, x in analysed.outputs.items() if grid or not x.whole}
        grid_of |= analysed.grids
        turners |= analysed.turners
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
