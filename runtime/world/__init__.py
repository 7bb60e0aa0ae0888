"""Ranks and how they meet. Groups are values, never globals."""

from runtime.world.mesh import Mesh
from runtime.world.world import World, alone, join

__all__ = [
    "Mesh",
    "World",
    "alone",
    "join",
]
