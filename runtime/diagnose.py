"""Where NaN or infinity began: the layers of a stage run one by one over the inputs that went wrong."""

from __future__ import annotations

import torch

from planner.capture import Captured
from planner.cut import StageModule, layer_module
from runtime.stage import Tensors
from runtime.torch_stage import LOSS


def first_bad_layer(captured: Captured, module: StageModule, inputs: Tensors) -> str:
    """Name of the first layer that makes NaN, or an infinite loss, of inputs that had neither."""
    values = dict(inputs)
    states = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name in module.layers:
            layer = layer_module(captured, name)
            layer.materialise(states, next(iter(values.values())).device)
            made = layer(values)
            if any(t.isnan().any() or (n == LOSS and t.isinf().any()) for n, t in made.items()):
                return name
            values |= made
    return module.layers[-1]
