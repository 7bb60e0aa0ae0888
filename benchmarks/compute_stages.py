"""Real compute with one core a rank: stages of linear layers over two processes, beside torch's own schedules.

The control is 1F1B over both ranks doing half of the work each without a message: 1.50 at N = 2 and 1.25 at N = 4.
Where it reads something else, other jobs have used the cores that bubbles left idle, and no row says anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from planner.plan import StageTimes
from runtime.stage import backward
from runtime.stage.backward import Boundary

ROWS, WIDTH, LAYERS = 512, 512, 8  # of the whole model, whatever it is cut into


class Work(nn.Module):
    """One stage: its share of the layers."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS // stages))
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class WorkingStage:
    """`Work` as our interpreter runs it, its backward whole or by the graph walk."""

    def __init__(self, module: Work, incoming: str, outgoing: str, *, split: bool) -> None:
        self.module, self._in, self._out, self._split = module, incoming, outgoing, split
        self._anchor = backward.anchor_on(torch.device("cpu"))
        self._live: dict[int, tuple[Boundary, Tensor]] = {}
        self._owed: dict[int, backward.Owed] = {}

    def forward(self, micro: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        boundary = Boundary(self._anchor)
        given = next(iter(inputs.values())) if inputs else torch.ones(ROWS, WIDTH)
        y = self.module(boundary.enter(self._in, given) if inputs else given)
        self._live[micro] = boundary, y
        return {self._out: y.detach()}

    def _roots(self, micro: int, grads: Mapping[str, Tensor]) -> tuple[Boundary, list[backward.Root]]:
        boundary, y = self._live.pop(micro)
        seed = next(iter(grads.values())) if grads else torch.ones_like(y)
        return boundary, [(backward.edge(y), seed)]

    def backward(self, micro: int, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        boundary, roots = self._roots(micro, grads)
        backward.whole(roots)
        return boundary.collect()

    def input_half(self, micro: int, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        boundary, roots = self._roots(micro, grads)
        self._owed[micro] = backward.input_half(roots, self._anchor, list(self.module.parameters()))
        return boundary.collect()

    def weight_half(self, micro: int) -> None:
        backward.weight_half(self._owed.pop(micro))

    def recompute(self, micro: int) -> None:
        raise NotImplementedError("nothing is recomputed here")


class Apart:
    """Half of the micro-batches through the whole model, without a message: nothing that shares two cores is faster."""

    def __init__(self, micros: int, ranks: int) -> None:
        self._module, self._micros = Work(1), micros // ranks

    def step(self, step: int) -> None:
        for _ in range(self._micros):
            self._module(torch.ones(ROWS, WIDTH)).sum().backward()


def on_a_core(rank: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def times_of(stages: int) -> StageTimes:
    """In proportions that linear layers have: only the order of actions follows from them."""
    f = 24_000_000 // stages
    return StageTimes(forward_ns=f, backward_ns=2 * f, input_grad_ns=f, weight_grad_ns=f)
