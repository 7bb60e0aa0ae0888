"""The passes of one layer as they will run: forward, whole backward, and its halves.

Gradients of parameters are added to buffers that exist already, gradients of inputs are made anew: that is what a
stage does, and the additions are part of what is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from planner.cut import StageModule
from planner.model import Layer

Values = Mapping[str, Tensor]
Forward = Callable[[Values], Values]


class BackwardSplit(Protocol):
    """The two halves of a backward as the runtime executes them; made without arguments, in another process too.

    `input_half` leaves the gradients of the inputs in their `.grad` and returns what `weight_half` needs to add
    those of the parameters to theirs.
    """

    def prepare(self, module: StageModule) -> Forward:
        """How a stage runs whose backward will be split; it may edit the module's graph."""

    def input_half(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
    ) -> object: ...

    def weight_half(self, halfway: object, parameters: Sequence[Tensor]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A layer with tensors to run it on."""

    layer: Layer
    forward: Forward
    split_forward: Forward  # as it runs where the backward will be split
    inputs: Values  # leaves; those that take part in the backward require a gradient
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]

    @property
    def differentiable_inputs(self) -> tuple[Tensor, ...]:
        return tuple(x for x in self.inputs.values() if x.requires_grad)

    @property
    def trainable(self) -> tuple[Tensor, ...]:
        return tuple(x for x in self.parameters if x.requires_grad)

    @property
    def has_halves(self) -> bool:
        """Otherwise one of the halves is empty, and the other one the whole."""
        return bool(self.differentiable_inputs and self.trainable)

    def outputs(self) -> tuple[Tensor, ...]:
        return self._outputs(self.forward)

    def split_outputs(self) -> tuple[Tensor, ...]:
        return self._outputs(self.split_forward)

    def _outputs(self, forward: Forward) -> tuple[Tensor, ...]:
        results = forward(self.inputs)
        return tuple(results[name] for name in self.layer.outputs)


def roots_of(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x for x in outputs if x.requires_grad)


def gradients_of(roots: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(torch.ones_like(x) for x in roots)


def backward(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], to: Sequence[Tensor], *, keep: bool
) -> None:
    if roots and to:
        torch.autograd.backward(roots, gradients, retain_graph=keep, inputs=list(to))


def whole_backward(specimen: Specimen, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    backward(roots, gradients, (*specimen.differentiable_inputs, *specimen.trainable), keep=False)


def forget_gradients(specimen: Specimen) -> None:
    """Of the inputs only: those of the parameters are buffers that stay."""
    for tensor in specimen.differentiable_inputs:
        tensor.grad = None
