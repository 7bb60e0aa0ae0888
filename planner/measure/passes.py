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

from planner.capture import StageModule
from planner.model import Layer
from planner.spatial import Layout

Values = Mapping[str, Tensor]
Forward = Callable[[Values], Values]


class HalvedLayer(Protocol):
    """One layer whose backward runs in two halves."""

    @property
    def walks(self) -> bool:
        """By a walk through the graph, as its whole stage has to then."""

    def forward(self, values: Values) -> Values: ...

    def input_half(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
    ) -> object:
        """Leaves the gradients of the inputs in their `.grad`, and returns what the weight half needs."""

    def weight_half(self, halfway: object, parameters: Sequence[Tensor]) -> None:
        """Adds the gradients of the parameters to their `.grad`."""


class BackwardSplit(Protocol):
    """Splits backwards as the runtime does; made without arguments, in the process that measures too."""

    def of(self, module: StageModule) -> HalvedLayer:
        """May edit the module's graph."""

    def walked(self, module: StageModule) -> HalvedLayer:
        """As in a stage that another layer makes walk."""


class SpatialSplit(Protocol):
    """Shards of a layer as the runtime executes them; made without arguments, in the process that measures too.

    `delivered` are the inputs that come cut. What cannot be computed on shards raises NoRule.
    """

    def layouts(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout]
    ) -> Mapping[str, Layout]:
        """How the outputs lie."""

    def shard(
        self, module: StageModule, grid: tuple[int, ...], delivered: Mapping[str, Layout], *, owing: bool
    ) -> None:
        """From here on the module computes one shard that has neighbours, whose messages cost nothing; as in a stage
        that owes weight gradients, or in another one."""


@dataclass(frozen=True)
class Apart:
    """Where there is no split to execute: each half for itself, and both go over the operations that they share."""

    forward: Forward
    walks: bool = False

    def input_half(
        self,
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
    ) -> object:
        backward(outputs, gradients, inputs, keep=True)
        return outputs, gradients

    def weight_half(self, halfway: object, parameters: Sequence[Tensor]) -> None:
        assert isinstance(halfway, tuple)
        outputs, gradients = halfway
        backward(outputs, gradients, parameters, keep=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A layer with tensors to run it on."""

    layer: Layer
    forward: Forward
    halves: HalvedLayer
    walked: HalvedLayer | None  # where halves are executed
    inputs: Values  # leaves; those that take part in the backward require a gradient
    parameters: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]
    on_shards: bool = False

    @property
    def device(self) -> torch.device:
        tensors = (*self.inputs.values(), *self.parameters)
        return tensors[0].device if tensors else torch.device("cpu")

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

    def outputs(self, forward: Forward | None = None) -> tuple[Tensor, ...]:
        results = (forward or self.forward)(self.inputs)
        return tuple(results[name] for name in self.layer.outputs)

    def input_half(self, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> object:
        return self.halves.input_half(roots, gradients, self.differentiable_inputs, self.trainable)

    def weight_half(self, halfway: object) -> None:
        self.halves.weight_half(halfway, self.trainable)


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
