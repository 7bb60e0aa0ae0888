"""Restores the causal flag of attention where the trace holds a dense mask in its place.

Fast kernels take the flag and refuse the mask. A mask is replaced only where three things are proven. It is made of
nothing but constants, it is the same for every batch, and its values are those of the flag.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from planner.capture.fake_run import Probe, arguments
from planner.capture.functional import drop_unused, random
from planner.capture.traced_graph import Traced

ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
MASK, CAUSAL = 3, 5  # positions of its arguments
DEFAULTS = (None, 0.0, False)  # mask, dropout, causal
LARGEST = 2**26  # elements of a mask that are looked at: 8,192 by 8,192


def restore_causal_flags(traced: Traced, probe: Probe) -> None:
    """Replaces masks that are proven causal by the flag, in place.

    Args: `probe` is a run of the graph on fake tensors, for the shapes.
    """
    known: dict[fx.Node, bool] = {}
    for node in traced.graph.nodes:
        if node.target is not ATTENTION or len(node.args) <= MASK or node.kwargs.get("is_causal"):
            continue
        mask = node.args[MASK]
        if not isinstance(mask, fx.Node) or (len(node.args) > CAUSAL and node.args[CAUSAL]):
            continue
        if mask not in known:
            known[mask] = _is_causal(traced, probe, mask)
        if known[mask]:
            given = [*node.args, *DEFAULTS[len(node.args) - MASK :]]
            given[MASK], given[CAUSAL] = None, True
            node.args = tuple(given)
    drop_unused(traced.graph, set(traced.outputs))


def _is_causal(traced: Traced, probe: Probe, mask: fx.Node) -> bool:
    """Returns whether a mask is proven causal; batch and heads may only have been expanded."""
    shape = probe.tensor(mask)
    assert shape is not None
    rows, columns = shape.shape[-2:]
    while mask.target is torch.ops.aten.expand.default and isinstance(mask.args[0], fx.Node):
        mask = mask.args[0]
    inner = probe.tensor(mask)
    if inner is None or inner.ndim < 2 or inner.shape[-2:] != (rows, columns) or inner.numel() > LARGEST:
        return False
    needed = _constant_ancestors(traced, mask)
    if needed is None or inner.numel() != rows * columns:
        return False
    return _says_causal(_evaluate(needed)[mask].reshape(rows, columns))


def _constant_ancestors(traced: Traced, node: fx.Node) -> list[fx.Node] | None:
    """Returns the nodes that a node is computed from, in order.

    None stands for a node that depends on the batch, on a weight or on chance.
    """
    found: set[fx.Node] = set()
    open_ = [node]
    while open_:
        top = open_.pop()
        if top in found:
            continue
        if top.op != "call_function" or random(top) or str(top.target) == "aten.sym_size.int":
            return None
        found.add(top)
        open_ += top.all_input_nodes
    return [x for x in traced.graph.nodes if x in found]


def _evaluate(nodes: list[fx.Node]) -> dict[fx.Node, Tensor]:
    values: dict[fx.Node, object] = {}
    with torch.no_grad():
        for node in nodes:
            args, kwargs = arguments(node, values)
            assert callable(node.target)
            values[node] = node.target(*args, **kwargs)
    return {node: value for node, value in values.items() if isinstance(value, Tensor)}


def _says_causal(mask: Tensor) -> bool:
    lower = torch.ones(mask.shape, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return torch.equal(mask, lower)
    if not mask.is_floating_point():
        return False
    # The most negative number hides as well as infinity does: its exponential is zero beside any score.
    hidden = mask <= torch.finfo(mask.dtype).min
    return torch.equal(mask == 0, lower) and torch.equal(hidden, ~lower)
