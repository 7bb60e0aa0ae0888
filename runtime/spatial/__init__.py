"""Stages that compute on shards of a sample, with halos, statistics and losses exchanged between the ranks.

In comes a `StageModule` with the grid of the plan. Its graph is rewritten so that it computes one rank's
shard; results and gradients are those of the whole sample.
Start at `ranks.py` (`sharing`: the groups of a plan), then `analyse.py` (what is cut and what is fetched) and
`shard.py` (the rewriting). `kernels/` has one file a kind of operation, under the keys of the rules in
`planner.spatial`.
"""

from runtime.spatial.box import BoxRunner, ShardRunner, steady
from runtime.spatial.group import GroupWire, SampleGroup, Wire
from runtime.spatial.kernels.norm import OverReplicas
from runtime.spatial.operation import call_named
from runtime.spatial.ranks import AloneShard, Sharing, sharing
from runtime.spatial.shard import called, matched

__all__ = [
    "AloneShard",
    "BoxRunner",
    "GroupWire",
    "OverReplicas",
    "SampleGroup",
    "ShardRunner",
    "Sharing",
    "Wire",
    "call_named",
    "called",
    "matched",
    "sharing",
    "steady",
]
