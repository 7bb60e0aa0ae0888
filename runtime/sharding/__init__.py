"""Gradients and parameters that replicas share by element: each holds a part of every unit, and all of it while used.

In come buckets, and who shares them; out come `SharedFlat`s, whose gradients are summed as they come, and stages
whose parameters are gathered before a unit runs and let go behind it. Start at `flats.py` (one bucket on one rank),
then `stages.py` (units of a stage as its graph runs). Which stage shares what is decided in the plan.
"""

from runtime.sharding.flats import Load, SharedFlat
from runtime.sharding.joined import Joining
from runtime.sharding.of_rank import flats_of
from runtime.sharding.stages import RankUnits, StageUnits
from runtime.sharding.wires import Pace, shared_buckets, stand_in

__all__ = [
    "Joining",
    "Load",
    "Pace",
    "RankUnits",
    "SharedFlat",
    "StageUnits",
    "flats_of",
    "shared_buckets",
    "stand_in",
]
