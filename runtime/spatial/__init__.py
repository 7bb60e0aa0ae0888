"""Kernels on shards, under the same keys as `planner.spatial`."""

from runtime.spatial.alone import Alone
from runtime.spatial.group import GroupWire, Mesh
from runtime.spatial.kernels.norm import OverReplicas
from runtime.spatial.ranks import sharing
from runtime.spatial.shard import called, operation_of

__all__ = [
    "Alone",
    "GroupWire",
    "Mesh",
    "OverReplicas",
    "called",
    "operation_of",
    "sharing",
]
