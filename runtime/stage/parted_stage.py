"""A stage that recomputes its early layers only: two stages in one, with the late one's activations kept.

Values between the two go by their names, and gradients come back as they do between stages: the earlier one
adds its own to those of a later reader.

Also here: the search for the layer where NaN or infinity began, which runs a stage's layers one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor

from planner.capture import Captured, StageModule, layer_module
from runtime.execute import Tensors
from runtime.runfolder import LOSS
from runtime.stage.torch_stage import TorchStage

AnyStage: TypeAlias = "TorchStage | PartedStage"


class PartedStage:
    """A stage made of an early part that recomputes and a late part that does not.

    It does what a `TorchStage` does, with the same arguments and results.
    """

    def __init__(
        self,
        module: StageModule,
        early: TorchStage,
        late: TorchStage,
        on_forward: Callable[[int], AbstractContextManager[object]] | None = None,
    ) -> None:
        """Joins the two parts.

        Args: `module` is the whole stage, of which `early` recomputes and `late` does not; `on_forward`
            observes a forward of a micro-batch.
        """
        self.module, self.first_micro = module, early.first_micro
        self._early, self._late, self._on_forward = early, late, on_forward

    @property
    def losses(self) -> dict[int, dict[str, Tensor]]:
        """Returns the losses of the step by micro-batch, where this stage has the loss."""
        return self._late.losses

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        observed = self._on_forward(micro) if self._on_forward else nullcontext()
        with observed:
            made = self._early.forward(micro, inputs)
            made |= self._late.forward(micro, {**inputs, **made})
        return {name: made[name] for name in self.module.outputs}

    def recompute(self, micro: int) -> None:
        self._early.recompute(micro)

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        late = self._late.backward(micro, grads)
        return self._joined(late, self._early.backward(micro, {**grads, **late}))

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        late = self._late.input_half(micro, grads)
        return self._joined(late, self._early.input_half(micro, {**grads, **late}))

    def weight_half(self, micro: int) -> None:
        self._late.weight_half(micro)
        self._early.weight_half(micro)

    def _joined(self, late: Tensors, early: Tensors) -> dict[str, Tensor]:
        """Returns the gradients of the stage's own inputs, some of which only one part reads."""
        return {name: grad for name, grad in {**late, **early}.items() if name in self.module.inputs}


def in_two(module: StageModule, before: str, captured: Captured, device: torch.device) -> list[StageModule]:
    """Cuts a stage before one of its layers.

    Args: `before` is the first layer of the second part; `device` is where tensors are copied to.
    Returns: both parts, with copies of the stage's parameters and buffers.
    """
    index = captured.graph.index
    first, middle, end = index[module.layers[0]], index[before], index[module.layers[-1]]
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    parts = [
        StageModule(captured, module.index, first, middle - 1),
        StageModule(captured, module.index, middle, end),
    ]
    for part in parts:
        part.materialise(held, device)
    return parts


def first_bad_layer(captured: Captured, module: StageModule, inputs: Tensors) -> str:
    """Returns the name of the first layer that makes NaN, or an infinite loss, of inputs that had neither.

    Args: `inputs` are those of the stage `module`, by name.
    Returns: the stage's last layer where no layer does.
    """
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
