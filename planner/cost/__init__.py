"""Prices stages: the time and the bytes of any consecutive layers, for every cut at once.

In: a `Profile`, a setting of it, and for samples cut in space a `GridChoice`. Out: `Tables`, integer arrays over
layer intervals [i, j), each interval a candidate stage. Start reading at `stage_bytes.py` (the definition, one
stage at a time), then `tables.py` (all stages at once). `activation_tables.py`, `values.py` and `shared_weights.py`
are parts of these tables, `spatial_tables.py` makes them for shards and for tensors in parts, and `messages.py` says what
stages send each other.
"""

from planner.arrays import NS_PER_S
from planner.cost.activation_tables import in_passes
from planner.cost.messages import Edges, hop_bytes
from planner.cost.shared_weights import Owned, Rectangles
from planner.cost.spatial_tables import (
    Grid,
    GridChoice,
    Prices,
    cut_tables,
    layer_ns,
    least_work_ns,
    row_of,
    sharded,
    shared_tables,
    shown,
    stage_of,
    update_pace,
)
from planner.cost.stage_bytes import copies_of_statistics, losses_held, stage_bytes, step_bytes
from planner.cost.tables import INDEX_BYTES, Tables, price, setting_of
from planner.cost.unit_tables import running_maximum

__all__ = [
    "INDEX_BYTES",
    "NS_PER_S",
    "Edges",
    "Grid",
    "GridChoice",
    "Owned",
    "Prices",
    "Rectangles",
    "Tables",
    "copies_of_statistics",
    "cut_tables",
    "hop_bytes",
    "in_passes",
    "layer_ns",
    "least_work_ns",
    "losses_held",
    "price",
    "row_of",
    "running_maximum",
    "setting_of",
    "sharded",
    "shared_tables",
    "shown",
    "stage_bytes",
    "stage_of",
    "step_bytes",
    "update_pace",
]
