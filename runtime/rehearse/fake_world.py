"""A world of ranks in which only one rank exists, and what every hop of a plan carries in it.

The rank's own calls of torch.distributed run as they are. Only the process group behind them is another, which answers
at once: a sum leaves a tensor as it is, and parts that come from other ranks are zeros.

`layouts` runs one micro-batch through all stages, on tensors without contents. What a stage sends depends on its
operations and on no number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from math import prod
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    ProcessGroup,
    Store,
    _create_work_from_future,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.futures import Future

from planner.capture import Captured
from planner.errors import BadInput
from planner.model import Buffer, ModelGraph, Parameter
from planner.plan import Plan
from planner.schedule import Kind
from runtime.execute import Tensors
from runtime.messages import DenseLayout, Direction, Edge, Routes
from runtime.rank import RankOptions, RankParts
from runtime.stage import AnyStage
from runtime.world import Rail, World, hide_from_models

NAME = "rehearsal"
LEAST, MOST = 0.1, 1.0  # of made-up numbers: a logarithm, a root and a quotient of them are finite


def fill(tensor: Tensor) -> Tensor:
    """Fills a tensor with made-up contents and returns it.

    Args: `tensor` gets small positive numbers; True where it is bool, and 0 where it is of integers.
    """
    if tensor.is_floating_point():
        return tensor.uniform_(LEAST, MOST)
    return tensor.fill_(tensor.dtype == torch.bool)


def _done(tensors: object) -> dist.Work:
    future: Future[object] = Future()
    future.set_result(tensors)
    work: dist.Work = _create_work_from_future(future)
    return work


class _Silence(ProcessGroup):
    """A process group whose other members are always there and never send anything."""

    def getBackendName(self) -> str:
        return NAME

    def send(self, tensors: list[Tensor], target: int, tag: int) -> dist.Work:
        return _done(tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> dist.Work:
        for tensor in tensors:
            fill(tensor)
        return _done(tensors)

    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], options: object = None
    ) -> dist.Work:
        return _done(tensors)

    def broadcast(  # type: ignore[override]
        self, tensors: list[Tensor], options: object = None
    ) -> dist.Work:
        return _done(tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], own: list[Tensor], options: object = None
    ) -> dist.Work:
        """Fills the other ranks' parts with made-up numbers."""
        for part in outputs[0]:
            fill(part)
        outputs[0][self.rank()].copy_(own[0])
        return _done(outputs)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: list[Tensor], inputs: list[list[Tensor]], options: object = None
    ) -> dist.Work:
        """Copies this rank's own part, to which the other ranks add nothing."""
        outputs[0].copy_(inputs[0][self.rank()])
        return _done(outputs)

    def alltoall_base(
        self, output: Tensor, sent: Tensor, sizes: list[int], sent_sizes: list[int], options: object = None
    ) -> dist.Work:
        """Copies this rank's own part. The other ranks' parts are zeros, which add nothing."""
        parts, own = torch.split(output.zero_(), sizes), torch.split(sent, sent_sizes)
        parts[self.rank()].copy_(own[self.rank()])
        return _done([output])


class _Everybody(Store):
    """A store that says of every group that all of its members have come."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks

    def add(self, key: str, amount: int) -> int:
        return self._ranks

    def set(self, key: str, value: str) -> None:
        pass

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass


@dataclass(frozen=True)
class AloneWorld(World):
    """The world of a rank that runs alone."""

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Returns a group of ranks, None where this rank is no member. Only groups of this rank are made.

        Args: `ranks` are the members.
        """
        return super().new_group(ranks) if self.rank in ranks else None

    def rail(self, ranks: Sequence[int], name: str, interface: str = "") -> Rail:
        """Returns a silent group of ranks, in whatever order and over whatever card.

        Args: `ranks` are the members.
        """
        return cast(Rail, _Silence(ranks.index(self.rank), len(ranks)))  # type: ignore[call-arg]


def _silence(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return _Silence(rank, size)  # type: ignore[call-arg]


@contextmanager
def world_of(rank: int, size: int, device: torch.device) -> Iterator[AloneWorld]:
    """Makes the world of a rank that runs alone, and ends it with the context.

    Args: `size` is the number of ranks that there seem to be.
    Raises: BadInput where this process is already a rank of a run.
    """
    if dist.is_initialized():
        raise BadInput(
            "this process is a rank of a run already", where="rehearse", allowed="a process of its own"
        )
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _silence, devices=["cpu", "cuda"])
    hide_from_models()
    hook = sys.excepthook  # torch puts one of its own there, and leaves it
    dist.init_process_group(NAME, rank=rank, world_size=size, store=_Everybody(size))
    try:
        yield AloneWorld(rank, size, device, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


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
