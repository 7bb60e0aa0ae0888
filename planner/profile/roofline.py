"""Times from FLOPs, bytes moved and a device's peaks: planning without the hardware, and without torch.

An operation takes the longer of its arithmetic and its memory traffic, and never less than a launch. That is a
lower bound on what a real kernel takes, and a profile made of it says so (`source: roofline`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.cluster import Device
from planner.model import Layer, ModelGraph
from planner.profile.check import check
from planner.profile.profile import CostKey, LayerCost, OptimizerCost, Profile, Seconds

ADAMW = "adamw"
ADAMW_STATE_BYTES = 8.0  # two fp32 moments
ADAMW_TRAFFIC_BYTES = 28.0  # reads weight, gradient and two moments, writes all but the gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationWork:
    """What one operation asks of a device."""

    flops: int
    traffic_bytes: int
    precision: str  # of its arithmetic


def seconds(work: Iterable[OperationWork], device: Device) -> Seconds:
    return Seconds(median=sum(_operation_s(x, device) for x in work))


def _operation_s(work: OperationWork, device: Device) -> float:
    arithmetic_s = work.flops / device.flop_per_s(work.precision)
    return max(arithmetic_s, work.traffic_bytes / device.memory_bytes_per_s, device.launch_s)


def optimizer_cost(
    device: Device,
    name: str = ADAMW,
    state_bytes: float = ADAMW_STATE_BYTES,
    traffic_bytes: float = ADAMW_TRAFFIC_BYTES,
) -> OptimizerCost:
    return OptimizerCost(
        name=name,
        state_bytes_per_parameter=state_bytes,
        seconds_per_parameter=Seconds(median=traffic_bytes / device.memory_bytes_per_s),
    )


def from_graph(
    graph: ModelGraph,
    device: Device,
    *,
    micros: Sequence[int],
    precision: str = "fp32",
    workload: str = "",
    arguments: Mapping[str, object] | None = None,
) -> Profile:
    """A profile from the graph alone.

    What autograd keeps is a guess here: every layer with parameters or a gradient keeps its inputs. With the
    captured module at hand, `measure.profile` knows it exactly.
    """
    layers = {layer.signature: layer for layer in graph.layers}
    costs = {
        CostKey(signature, micro, (), precision, "eager"): _layer_cost(graph, layer, device, micro, precision)
        for signature, layer in layers.items()
        for micro in micros
    }
    return check(
        Profile(
            workload=workload,
            arguments=dict(arguments or {}),
            graph=graph,
            device=device.name,
            source="roofline",
            costs=costs,
            optimizer=optimizer_cost(device),
            versions={},
        )
    )


def _layer_cost(graph: ModelGraph, layer: Layer, device: Device, micro: int, precision: str) -> LayerCost:
    weights = sum(graph.parameter[name].bytes for name in layer.parameters)
    weight_gradients = sum(graph.parameter[n].bytes for n in layer.parameters if graph.parameter[n].trainable)
    read = sum(graph.value[name].bytes(micro) for name in layer.inputs)
    written = sum(graph.value[name].bytes(micro) for name in layer.outputs)
    flops = layer.flops(micro)
    asks_input_grad = any(graph.value[name].needs_grad for name in layer.inputs)

    def time(traffic_bytes: int) -> Seconds:
        return seconds([OperationWork(flops=flops, traffic_bytes=traffic_bytes, precision=precision)], device)

    nothing = Seconds(median=0.0)
    forward = time(read + written + weights)
    input_grad = time(read + written + weights) if asks_input_grad else nothing
    weight_grad = time(read + written + weight_gradients) if weight_gradients else nothing
    backward = Seconds(median=input_grad.median + weight_grad.median)
    kept = tuple(range(len(layer.inputs))) if backward.median else ()
    return LayerCost(
        forward=forward,
        backward=backward,
        input_grad=input_grad,
        weight_grad=weight_grad,
        own_saved_bytes=0,
        kept_inputs=kept,
        kept_outputs=(),
        held_bytes=read + written if weight_gradients else 0,
        workspace_bytes=weight_gradients,
    )
