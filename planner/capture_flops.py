"""FLOPs of operations that torch's counter misses on a CPU, whose kernels it does not know."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, fx

RECURRENT = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
ATTENTION = "aten.scaled_dot_product_attention.default"


def flops_by_hand(node: fx.Node, values: Mapping[fx.Node, object]) -> int:
    """0 where torch's own counter knows."""
    if str(node.target) == ATTENTION:
        query, key, value = (_shape(x, values) for x in node.args[:3])
        scores = math.prod(query[:-1]) * key[-2]
        return 2 * scores * (query[-1] + value[-1])  # the scores that a mask hides count too
    if str(node.target) in RECURRENT:
        sequence, weights = _shape(node.args[0], values), node.args[2]
        assert isinstance(weights, list | tuple)
        matrices = [shape for shape in (_shape(x, values) for x in weights) if len(shape) == 2]
        return 2 * math.prod(sequence[:-1]) * sum(map(math.prod, matrices))
    return 0


def _shape(node: object, values: Mapping[fx.Node, object]) -> tuple[int, ...]:
    assert isinstance(node, fx.Node)
    tensor = values[node]
    assert isinstance(tensor, Tensor)
    return tuple(tensor.shape)
