"""All stages of a plan on shards: how Values lie between them, and what each rank of a group does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.cut import StageModule
from planner.errors import BadPlan
from planner.halo import Layout, check_grid
from runtime.spatial.analyse import samples_of
from runtime.spatial.shard import Analysed, analyse, value_shapes

Grid = tuple[int, ...]


def analyse_stages(
    modules: Sequence[StageModule], grids: Sequence[Grid], ranks: int, gathers: Sequence[str] = ()
) -> list[Analysed]:
    """One a stage, in order. A stage without a grid gathers what comes cut, and every rank computes all of it.

    Values pass between ranks of the same place in their groups, as they lie: all stages have groups of `ranks`. What
    a stage with a grid has made whole stays whole. `gathers` names the layer before which a stage gathers, or none.
    """
    delivered: dict[str, Layout] = {}
    grid_of: dict[str, Grid] = {}
    found = []
    for index, (module, grid) in enumerate(zip(modules, grids, strict=True)):
        where = f"stage {index}"
        known = {name: delivered[name] for name in module.inputs if name in delivered}
        cut = {name for name, layout in known.items() if not layout.whole}
        used = grid or _only([grid_of[name] for name in cut]) or (ranks,)
        for name in cut:
            if grid_of[name] != used:
                raise BadPlan(
                    f"{where}: '{name}' comes cut {_show(grid_of[name])}, the stage is cut {_show(used)}"
                )
        if grid:
            _check(module, grid, where)
        gather = gathers[index] if gathers else ""
        if gather and gather not in module.layers:
            raise BadPlan(f"{where}: gathers before '{gather}', which is not in it")
        before = ([gather] if gather else []) if grid else module.layers
        analysed = analyse(module, used, known, gather_before=before, entering=bool(grid))
        found.append(analysed)
        delivered |= {name: x for name, x in analysed.outputs.items() if grid or not x.whole}
        grid_of |= dict.fromkeys(analysed.outputs, used)
    return found


def _only(grids: Sequence[Grid]) -> Grid:
    return grids[0] if grids else ()


def _check(module: StageModule, grid: Grid, where: str) -> None:
    shapes = value_shapes(module)
    for name in samples_of(module):
        check_grid(shapes[name], grid, f"{where}, '{name}'")


def _show(grid: Grid) -> str:
    return "x".join(map(str, grid))


def uncounted(analysed: Mapping[int, Analysed], place: int) -> frozenset[str]:
    """Parameters whose gradients a rank must not add to the sum over its group, since the first one does."""
    if place == 0:
        return frozenset()
    counted = frozenset(name for each in analysed.values() for name in each.partial)
    alike = frozenset(name for each in analysed.values() for name in each.uncounted)
    mixed = sorted(counted & alike)
    if mixed:
        raise BadPlan(f"'{mixed[0]}' is used on shards in one stage and on whole samples in another")
    return alike
