"""Holds the decision about one training as data: the plan, its file, and the mesh of its ranks.

In: a plan file, or what the solver decided. Out: a frozen `Plan`, valid in form. Start reading at `plan.py` (all
decisions, part by part), then `mesh.py` (which rank is where), `derive.py` (the schedule and the layers of a plan)
and `yaml.py` (the file). Whether a plan is right is for `planner.verify` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from planner.plan.certificate import (
    MOST_NEAR,
    Certificate,
    LayerOrders,
    PlannedConfiguration,
    Rival,
    RivalKind,
    SearchCounts,
    SearchSpace,
)
from planner.plan.plan import (
    Axes,
    Batch,
    Hop,
    KeptWeights,
    Memory,
    ModelRef,
    Place,
    Plan,
    Prediction,
    Provenance,
    Regrid,
    ReplicaTimes,
    ScheduleChoice,
    StagePlan,
    StageShard,
    StageTimes,
    grids_of,
    shared_from,
)

if TYPE_CHECKING:
    from planner.plan.derive import (
        as_planned,
        cards_of,
        coordinates,
        distinct_replicas,
        holders_of,
        kept_of,
        layers_of,
        places,
        rank_of,
        ranks_of_worker,
        refused,
        schedule_of,
        shortened,
        stage_rows,
        times_of,
        told_sums,
        world_size,
    )
    from planner.plan.sharding import (
        BY_ELEMENT,
        shard_of,
        shard_ranks,
        shared_by_element,
        told_shared,
        unit_names,
        units_of_parameters,
        updaters,
    )
    from planner.plan.yaml import dump, load

__all__ = [
    "BY_ELEMENT",
    "MOST_NEAR",
    "Axes",
    "Batch",
    "Certificate",
    "Hop",
    "KeptWeights",
    "LayerOrders",
    "Memory",
    "ModelRef",
    "Place",
    "Plan",
    "PlannedConfiguration",
    "Prediction",
    "Provenance",
    "Regrid",
    "ReplicaTimes",
    "Rival",
    "RivalKind",
    "ScheduleChoice",
    "SearchCounts",
    "SearchSpace",
    "StagePlan",
    "StageShard",
    "StageTimes",
    "as_planned",
    "cards_of",
    "coordinates",
    "distinct_replicas",
    "dump",
    "grids_of",
    "holders_of",
    "kept_of",
    "layers_of",
    "load",
    "places",
    "rank_of",
    "ranks_of_worker",
    "refused",
    "schedule_of",
    "shard_of",
    "shard_ranks",
    "shared_by_element",
    "shared_from",
    "shortened",
    "stage_rows",
    "times_of",
    "told_shared",
    "told_sums",
    "unit_names",
    "units_of_parameters",
    "updaters",
    "world_size",
]

__getattr__ = later(
    __name__,
    {
        "derive": (
            "as_planned",
            "cards_of",
            "holders_of",
            "kept_of",
            "layers_of",
            "refused",
            "schedule_of",
            "shortened",
            "distinct_replicas",
            "times_of",
            "told_sums",
            "stage_rows",
            "coordinates",
            "places",
            "rank_of",
            "ranks_of_worker",
            "world_size",
        ),
        "sharding": (
            "BY_ELEMENT",
            "shard_of",
            "shard_ranks",
            "shared_by_element",
            "told_shared",
            "unit_names",
            "units_of_parameters",
            "updaters",
        ),
        "yaml": (
            "dump",
            "load",
        ),
    },
)
