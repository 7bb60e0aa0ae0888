"""The ranks of a run and how they meet. Groups are values that are handed on, never globals.

In come a rank, the number of ranks and a place to meet; out comes a `World` that makes communicators.
Start at `world.py`; `rendezvous.py` says how ranks find each other.
"""

from runtime.world.rendezvous import check_cards, hide_from_models
from runtime.world.world import HostClock, Rail, RankMesh, World, alone, clock, gpu_of, join, rail_of

__all__ = [
    "HostClock",
    "Rail",
    "RankMesh",
    "World",
    "alone",
    "check_cards",
    "clock",
    "gpu_of",
    "hide_from_models",
    "join",
    "rail_of",
]
