"""A conversion as a call in a stage's graph: the tensor takes its steps forward, and the gradient takes them back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.layout import Passage
from runtime.layout.moves import CutGroup, moved


@dataclass(frozen=True)
class Convert:
    """The steps that bring a tensor to another layout."""

    steps: tuple[Passage, ...]
    group: CutGroup

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = passed(x, step, self.group)
        return x


class _Context(FunctionCtx):
    step: Passage
    group: CutGroup


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, step: Passage, group: CutGroup) -> Tensor:
        ctx.step, ctx.group = step, group
        found = moved(x, step.forward, step.source, step.target, step.axis, group)
        return x.view_as(x) if found is x else found

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        step = ctx.step
        back = moved(grad, step.backward, step.target.dual(), step.source.dual(), step.axis, ctx.group)
        return back, None, None


def passed(x: Tensor, step: Passage, group: CutGroup) -> Tensor:
    """Takes one step of a conversion, differentiably.

    Args: `x` is this rank's part before it.
    Returns: this rank's part behind it.
    """
    if not x.requires_grad:
        return moved(x, step.forward, step.source, step.target, step.axis, group)
    result: Tensor = _Passed.apply(x, step, group)  # type: ignore[no-untyped-call]
    return result
