"""Time and bytes of any stage for every cut at once."""

from planner.arrays import NS_PER_S as NS
from planner.cost.messages import hop_bytes
from planner.cost.spatial_tables import Grid, GridChoice, Prices, row_of, sharded, shown, stage_of
from planner.cost.stage_bytes import copies_of_statistics, losses_held, stage_bytes, step_bytes
from planner.cost.tables import Tables, price

__all__ = [
    "NS",
    "Grid",
    "GridChoice",
    "Prices",
    "Tables",
    "copies_of_statistics",
    "hop_bytes",
    "losses_held",
    "price",
    "row_of",
    "sharded",
    "shown",
    "stage_bytes",
    "stage_of",
    "step_bytes",
]
