"""A whole model, loss included, trained for some steps on shards and in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from planner.capture import Captured, StageModule, capture
from planner.capture.stage_modules import whole
from planner.spatial import Grids, coordinates
from runtime.spatial import SampleGroup
from runtime.spatial.analyse import Analysed, analyse
from runtime.spatial.group import Wire
from runtime.spatial.shard import shard
from tests.runtime.spatial import threads
from tests.runtime.spatial.equality import part

LR = 1e-3


@dataclass(frozen=True)
class Job:
    captured: Captured
    start: Mapping[str, Tensor]
    values: Mapping[str, Tensor]  # of the batch, the same in every step
    steps: int


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    tensors: dict[str, Tensor]


def job(
    module: nn.Module,
    batch: Callable[[int], tuple[Tensor, Tensor]],
    loss: Callable[..., object],
    steps: int = 5,
) -> Job:
    module = module.double()
    for part_ in module.modules():
        if isinstance(part_, nn.modules.dropout._DropoutNd):
            part_.p = 0.0

    def doubled(n: int) -> tuple[object, object]:
        inputs, targets = batch(n)
        return inputs.double(), targets.double() if targets.is_floating_point() else targets

    captured = capture(module, doubled, loss)
    torch.manual_seed(3)
    values = captured.batch_values(*doubled(2))
    start = {name: tensor.clone() for name, tensor in captured.initial(module).items()}
    return Job(captured, start, values, steps)


def alone(given: Job) -> Trained:
    stage = _stage(given)
    return _train(given, stage, {name: given.values[name] for name in stage.inputs}, lambda _: None)


def alone_nearby(given: Job) -> Trained:
    """From weights one rounding away: how far rounding alone takes the training in these steps."""
    torch.manual_seed(4)
    moved = {
        name: x * (1 + 1e-15 * torch.randn_like(x)) if x.is_floating_point() else x
        for name, x in given.start.items()
    }
    return alone(replace(given, start=moved))


def on_shards(given: Job, grid: tuple[int, ...]) -> list[Trained]:
    return on_grids(given, Grids(prod(grid), grid))


def on_grids(given: Job, grids: Grids, gather_before: Collection[str] = ()) -> list[Trained]:
    how = analyse(whole(given.captured), grids.first, None, gather_before, grids)
    return threads.run(grids.ranks, lambda wire: _rank(given, how, wire))


def _rank(given: Job, how: Analysed, wire: Wire) -> Trained:
    grid = how.grid
    stage, mesh = _stage(given), SampleGroup(grid, wire)
    shard(stage, how, mesh)
    place = coordinates(wire.rank, grid)
    values = {name: part(given.values[name], how.inputs[name], place) for name in stage.inputs}

    def summed(stage: StageModule) -> None:
        for name, parameter in stage.named_parameters():
            if name in how.partial:
                assert parameter.grad is not None
                parameter.grad = mesh.reduce(parameter.grad, range(len(grid)))

    return _train(given, stage, values, summed)


def _stage(given: Job) -> StageModule:
    stage = whole(given.captured)
    stage.materialise(given.start)
    return stage


def _train(
    given: Job, stage: StageModule, values: Mapping[str, Tensor], sync: Callable[[StageModule], None]
) -> Trained:
    optimizer = torch.optim.SGD((p for _, p in stage.named_parameters()), lr=LR, momentum=0.9)
    losses = []
    for _ in range(given.steps):
        optimizer.zero_grad()
        loss = stage(values)["loss:0"]
        loss.backward()
        sync(stage)
        optimizer.step()
        losses.append(float(loss.detach()))
    state = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
    return Trained(losses, {name: tensor.detach().clone() for name, tensor in state.items()})
