"""Ranks and how they meet. Groups are values, never globals."""

from runtime.world.mesh import RankMesh
from runtime.world.world import World, alone, join

__all__ = [
    "RankMesh",
    "World",
    "alone",
    "join",
]
