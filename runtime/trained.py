"""Which parameters a training changes: trainable ones that a gradient of the loss can reach.

A single process leaves a parameter without a gradient alone (no weight decay, no momentum). A flat gradient would
be zero there, which an optimizer does not leave alone, so such parameters take no part.
"""

from __future__ import annotations

from torch import Tensor, fx

from planner.capture import Captured


def trained(captured: Captured) -> frozenset[str]:
    traced, probe = captured.layout.traced, captured.layout.probes[0]
    live: set[fx.Node] = set(traced.outputs[:1])
    for node in reversed(traced.graph.nodes):
        if node in live:
            live |= {x for x in node.all_input_nodes if _differentiable(probe.value[x])}
    names = {source.name for node, source in traced.sources.items() if node in live}
    return frozenset(row.name for row in captured.graph.parameters if row.trainable and row.name in names)


def _differentiable(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_differentiable(part) for part in value)
    return isinstance(value, Tensor) and value.requires_grad
