"""What every layer costs on one device: the table between measuring (or the roofline) and the solver.

Times are of one micro-batch on one rank. Layers of equal signature share a row. Saved bytes are in two parts so
that nothing is counted twice: what a layer allocates and keeps for itself, and which of the Values that it reads
or makes it keeps (positions in `Layer.inputs` and `Layer.outputs`); a stage counts each Value once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.model import ModelGraph


class CostKey(NamedTuple):
    signature: str
    micro: int
    split: tuple[
        int, ...
    ]  # spatial shards along (dim 2, dim 3, ...) of this layer's input; () is the whole sample
    precision: str  # fp32 | bf16
    execution: str  # eager | compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Median of the repeats, and half the distance between their quartiles; 0 where it was derived."""

    median: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    forward: Seconds
    backward: Seconds  # whole: input and weight gradients in one pass
    input_grad: Seconds  # the I half
    weight_grad: Seconds  # the W half
    own_saved_bytes: int  # allocated by the layer and kept until its backward, Values excluded
    kept_inputs: tuple[int, ...]  # positions in Layer.inputs of the Values that the backward needs
    kept_outputs: tuple[int, ...]
    held_bytes: int  # still held between I and W, Values included
    workspace_bytes: int  # highest transient above what stays, in any of the passes


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    name: str
    state_bytes_per_parameter: float  # per element: AdamW in fp32 keeps 8
    seconds_per_parameter: Seconds  # per element updated


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    workload: str
    arguments: Mapping[str, object]  # what --set gave
    graph: ModelGraph
    device: str  # a name of the device catalogue, or the name the device gave itself
    source: Literal["measured", "roofline"]
    costs: Mapping[CostKey, LayerCost]
    optimizer: OptimizerCost
    versions: Mapping[str, str]  # torch, shardwright, python

    def cost(self, layer: str, key: CostKey) -> LayerCost:
        return self.costs[key._replace(signature=self.graph.layer[layer].signature)]
