"""The space that a certificate is about: every fact that limits which plans were looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from planner import limits
from planner.configurations import SEARCHED, layouts_looked_at, looked_at, told
from planner.milp.instance import Instance
from planner.model import ONE_HOLDER, ONE_STAGE, one_holder
from planner.plan import SearchSpace
from planner.schedule import FAMILIES
from planner.spatial import slides


def searched_space(space: Instance) -> SearchSpace:
    """Returns what a bound of the instance is about."""
    pins = space.pins
    grids = sorted({choice.grid for micro in space.micros() for choice in space.splits(micro) if choice.grid})
    names = pins.schedules or SEARCHED
    free = pins.shard is None and pins.held is None and space.execution == "eager" and not space.joint
    several = any(isinstance(FAMILIES[name].chunks, int) for name in names)
    changes, gathers = looked_at(space.layers) if grids else (None, None)
    forwards = limits.MOST_FORWARDS if not pins.schedules and pins.out_of_order is not False else None
    return SearchSpace(
        families=names,
        fixed=told(pins),
        most_workers=pins.pipeline or limits.DEEPEST,
        most_actions=limits.MOST_ACTIONS,
        free_chunks=limits.FREE_CHUNKS if several and pins.chunks is None else None,
        parts="any" if pins.schedules else "none" if pins.out_of_order is False else "one_worker",
        most_forwards=forwards,
        equal_parts=pins.update == "rolling" and pins.out_of_order is not False,
        cuts="all",
        recompute=_recomputation(space),
        shard=(pins.shard,) if pins.shard is not None else (False,) if space.joint else (False, True),
        held=("gradients", "parameters") if free and space.profile.by_element else (),
        grids=tuple(grids),
        layouts=layouts_looked_at(space.splits, space.micros(), pins),
        grid_changes=changes,
        gathers=gathers,
        limits=tuple(_of_the_model(space)),
    )


def _of_the_model(space: Instance) -> Iterator[str]:
    """Yields what the model itself does not allow of a plan, each with its cause in one line."""
    graph = space.profile.graph
    if found := one_holder(graph):
        yield f"{ONE_HOLDER}, because {found[0]}"
    if space.joint:
        yield f"{ONE_STAGE}, because {space.joint} looks at all parameters together"
    if graph.synchronised and (space.execution == "compiled" or slides(graph)):
        name = graph.synchronised[0]
        yield f"replicas on whole samples in eager stages only, because '{name}' has a SyncBatchNorm"


def _recomputation(space: Instance) -> Literal["none", "all", "whole_stages", "first_layers"]:
    if space.pins.recompute is not None:
        return "all" if space.pins.recompute else "none"
    return "first_layers" if space.parts_recompute else "whole_stages"
