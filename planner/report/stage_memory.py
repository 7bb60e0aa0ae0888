"""What one micro-batch takes on each stage of a plan, on whole samples or on shards of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import numpy as np

from planner.cluster import Group, Sum
from planner.cost import GridChoice, Prices, Tables, setting_of, sharded, stage_bytes
from planner.plan import Plan, StagePlan, as_planned, updaters
from planner.profile import Profile
from planner.schedule import FAMILIES
from planner.simulate import StageBytes

_FREE = Group(
    latency_ns=0.0, byte_ns=0.0, sum=Sum(base_ns=(0.0, 0.0), slope_ns=(0.0, 0.0))
)  # bytes are asked for


def moving(plan: Plan, costs: Profile) -> list[StageBytes] | None:
    """An optimizer that replicas share updates a share at a time. None where grids are not as the solver has them."""
    key = setting_of(plan)
    costs = replace(costs, graph=as_planned(costs.graph, plan))
    found = [
        stage_bytes(costs, stage.layers, key, recompute=stage.recompute, before=stage.recompute_before)
        for stage in plan.stages
    ]
    if any(stage.spatial for stage in plan.stages):
        choice = _choice(plan.stages, costs, plan.axes.spatial)
        if choice is None:
            return None
        overlap = plan.schedule.family not in FAMILIES or not FAMILIES[plan.schedule.family].splits
        price = Prices(costs.graph)(choice)
        tables = sharded(costs, key, choice, price, _FREE, overlap=overlap)
        found = [
            _on_shards(tables, stage, whole.update) for stage, whole in zip(plan.stages, found, strict=True)
        ]
    shares = (updaters(plan, stage) for stage in range(len(found)))
    return [replace(each, update=each.update // share) for each, share in zip(found, shares, strict=True)]


def _choice(stages: Sequence[StagePlan], costs: Profile, ranks: int) -> GridChoice | None:
    """One grid from the first stage on, perhaps another one from some layer on, and the layer from which on samples
    are whole."""
    index = costs.graph.index
    cut = [bool(stage.spatial) for stage in stages]
    begun = [(index[stage.layers[0]], stage.spatial) for stage in stages if stage.spatial]
    turns = [turn for stage in stages for turn in stage.regrid]
    turned = [(index[turn.before], turn.spatial) for turn in turns if not turn.samples]
    shared = [index[turn.before] for turn in turns if turn.samples]
    lying = [next(each) for _, each in groupby(sorted(begun + turned), key=lambda each: each[1])]
    known = {key.split for key in costs.shards}
    if len(lying) > 2 or cut != sorted(cut, reverse=True) or not known.issuperset(g for _, g in lying):
        return None
    (_, grid), (then_from, then) = (*lying, (0, ()))[:2]
    if prod(grid) != ranks:
        return None
    wholes = [index[stage.gather_before] for stage in stages if stage.gather_before]
    wholes += [index[stage.layers[0]] for stage in stages if not stage.spatial]
    return GridChoice(grid, min(wholes + shared, default=0), then, then_from, bool(shared))


def _on_shards(tables: Tables, stage: StagePlan, update: int) -> StageBytes:
    index = tables.graph.index
    at = index[stage.layers[0]], index[stage.layers[-1]] + 1
    parts = tables.moving_parts(np.array(at[0]), np.array(at[1]), np.bool_(stage.recompute))
    return StageBytes(**{name: int(size) for name, size in parts.items()}, update=update)
