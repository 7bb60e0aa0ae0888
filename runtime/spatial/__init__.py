"""Kernels on shards, under the same keys as `planner.spatial`."""

from runtime.spatial.alone import AloneShard
from runtime.spatial.group import GroupWire, SampleGroup
from runtime.spatial.kernels.norm import OverReplicas
from runtime.spatial.ranks import sharing
from runtime.spatial.shard import called, operation_of

__all__ = [
    "AloneShard",
    "GroupWire",
    "OverReplicas",
    "SampleGroup",
    "called",
    "operation_of",
    "sharing",
]
