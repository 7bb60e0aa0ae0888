"""Profiles by roofline from a graph alone, for tests and benchmarks that have no module to capture.

What autograd keeps is a guess: every layer with parameters or a gradient keeps its inputs. `planner.measure.profile`
knows it from the captured module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.cluster import Device
from planner.model import Layer, ModelGraph
from planner.profile import CostKey, LayerCost, OperationWork, OptimizerCost, Profile, Seconds, check, seconds

ADAMW_STATE_BYTES = 8.0  # two fp32 moments
ADAMW_TRAFFIC_BYTES = 28.0  # reads weight, gradient and two moments, writes all but the gradient


def from_graph(
    graph: ModelGraph,
    device: Device,
    *,
    micros: Sequence[int],
    precision: str = "fp32",
    workload: str = "graph",
    arguments: Mapping[str, object] | None = None,
) -> Profile:
    """Returns the profile of a device by its peak rates, from the graph alone.

    Args: `micros` are the micro-batches, one setting each; the other settings are one precision and eager execution.
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
            optimizer=OptimizerCost(
                name="adamw",
                state_bytes_per_parameter=ADAMW_STATE_BYTES,
                seconds_per_parameter=Seconds(median=ADAMW_TRAFFIC_BYTES / device.memory_bytes_per_s),
            ),
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
