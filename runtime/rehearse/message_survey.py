"""Finds what every hop of a plan carries without another rank: all stages run once on tensors without
contents.

Shapes, strides and types that a stage sends depend on its operations, and on no number. So one micro-batch
goes forward through all stages of this rank's group, and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture import Captured
from planner.model import Buffer, ModelGraph, Parameter
from planner.plan import Plan
from planner.schedule import Kind
from runtime.execute import Tensors
from runtime.messages import DenseLayout, Direction, Edge, Routes
from runtime.rank import RankOptions, RankParts
from runtime.rehearse.fake_world import fill
from runtime.stage import AnyStage
from runtime.world import World

MADE_UP = RankOptions(made_up=True)


def layouts(plan: Plan, captured: Captured, batch: Tensors, world: World) -> dict[Edge, list[DenseLayout]]:
    """Returns the layout of every Value that a hop carries, by hop.

    Args: `batch` is one micro-batch; `world` is that of a rank, whose part of the samples counts.
    """
    stages = tuple(stage.model_copy(update={"shard": None}) for stage in plan.stages)
    eager = plan.model_copy(update={"execution": "eager", "stages": stages})
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        parts = RankParts(eager, captured, world, MADE_UP)
        # Recomputation makes the same tensors again.
        orders = (tuple(a for a in order if a.kind is not Kind.R) for order in parts.schedule.orders)
        parts.schedule = replace(parts.schedule, orders=tuple(orders))
        parts.held = tuple((0, stage) for stage in range(parts.schedule.stages))
        modules = parts.modules(_Unfilled(captured.graph))
        ran = [stage for _, stage in sorted(parts.stages(modules, {}).items())]
        values = {name: mode.from_tensor(tensor).to(world.device) for name, tensor in batch.items()}
        return _through(ran, parts.routes, values)


def _through(stages: Sequence[AnyStage], routes: Routes, batch: Tensors) -> dict[Edge, list[DenseLayout]]:
    found: dict[Edge, list[DenseLayout]] = {}
    values = dict(batch)
    for number, stage in enumerate(stages):
        made = stage.forward(0, {name: values[name] for name in stage.module.inputs})
        values |= made
        _note(found, routes, "act", number, made)
    carried: dict[tuple[int, str], Tensor] = {}  # by the stage that takes it
    for number, stage in reversed(list(enumerate(stages))):
        own = {name for _, names in routes.arriving("grad", number) for name in names}
        passed = stage.backward(0, {name: carried[number, name] for name in own})
        _note(found, routes, "grad", number, passed)
        for receiver, names in routes.leaving("grad", number):
            carried |= {(receiver, name): passed[name] for name in names}
    return found


def _note(
    found: dict[Edge, list[DenseLayout]], routes: Routes, direction: Direction, stage: int, made: Tensors
) -> None:
    for receiver, names in routes.leaving(direction, stage):
        found[direction, stage, receiver] = [DenseLayout.of(made[name]) for name in names]


@dataclass(frozen=True)
class MadeUpStates:
    """A loader of made-up parameters and buffers, by their names.

    Weights are about one over their fan-in, so that values do not grow from layer to layer. Variances are
    positive.
    """

    graph: ModelGraph  # has their shapes and types

    def parameters(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns made-up tensors by name."""
        return {name: self._made(name, _row(self.graph, name).shape) for name in names}

    def region(self, name: str, start: int, stop: int) -> Tensor:
        """Returns made-up elements of a tensor, in one dim."""
        return self._made(name, (stop - start,))

    def _made(self, name: str, shape: tuple[int, ...]) -> Tensor:
        row = _row(self.graph, name)
        tensor = fill(torch.empty(shape, dtype=getattr(torch, row.dtype)))
        if name in self.graph.parameter and tensor.is_floating_point() and len(row.shape) > 1:
            tensor /= max(1, prod(row.shape[1:]))
        return tensor


class _Unfilled(MadeUpStates):
    """A loader of tensors that hold nothing in particular."""

    def _made(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, _row(self.graph, name).dtype))


def _row(graph: ModelGraph, name: str) -> Parameter | Buffer:
    return graph.parameter[name] if name in graph.parameter else graph.buffer[name]
