"""What pool workers run for the tests of layouts: one step of a model on parts, over messages of gloo."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from planner.capture import Captured, cut, materialise
from planner.layout import everywhere, path
from runtime.layout import Convert, CutGroup
from runtime.layout.stage import STATE, cut_stage, local_graph
from runtime.spatial import GroupWire
from runtime.world import join
from tests.runtime.layout.cut_models import MODELS, ours, wishes
from tests.runtime.layout.training import captured_in_double

CUTS = ("heads", "vocabulary", "sequence")


def prepared() -> tuple[Captured, dict[str, Tensor], list[dict[str, Tensor]]]:
    """Returns the same model and batches in every process."""
    torch.manual_seed(0)
    return captured_in_double(ours())


def step(rank: int, ranks: int, rendezvous: Path) -> dict[str, list[float]]:
    """Returns the loss and every gradient, put together over the ranks, as plain numbers."""
    world = join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        made = world.new_group(range(ranks))
        assert made is not None
        captured, tensors, batches = prepared()
        graph = local_graph(captured, (ranks,), wishes(MODELS["our GPT-2"][1], CUTS))
        group = CutGroup((ranks,), GroupWire(made))
        (stage,) = cut(captured, ())
        materialise(stage, tensors)
        cut_stage(stage, graph, group)
        loss = list(stage(batches[0]).values())[-1]
        loss.backward()
        found = {"loss": [float(loss.detach())]}
        for name, x in stage.named_parameters():
            own = graph.states[STATE + name].dual()
            steps = path(own, everywhere(own.shape), (ranks,), trained=False)
            assert x.grad is not None
            found[name] = Convert(steps, group)(x.grad).flatten().tolist()
        return found
    finally:
        world.close()


def repeated(rank: int, ranks: int, rendezvous: Path) -> list[list[float]]:
    """Returns the sum and the parts of tensors with gaps or repeated numbers, as gradients of sums and columns are."""
    world = join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        made = world.new_group(range(ranks))
        assert made is not None
        group = CutGroup((ranks,), GroupWire(made))
        once, column = torch.tensor(rank + 1.0).expand(6), torch.arange(12.0).view(6, 2)[:, 1]
        parts = [torch.cat(group.spread(x, [x.shape] * ranks, 0)) for x in (once, column)]
        return [x.tolist() for x in (*parts, group.reduced(once, 0), group.reduced(column, 0))]
    finally:
        world.close()


def held_afterwards(rank: int, ranks: int, rendezvous: Path) -> tuple[int, int]:
    """Returns how many of a thousand collectives left a tensor with somebody else, on one core for all ranks.

    The second number is how often most of them waited for that at most.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    calls, kindly = list[None](), os.sched_yield
    os.sched_yield = lambda: (calls.append(None), kindly())[1]
    world = join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        made = world.new_group(range(ranks))
        assert made is not None
        wire, late, sizes = GroupWire(made), 0, [1 << 14] * ranks
        waits = []
        for _ in range(1000):
            calls.clear()
            sent, found = torch.zeros(sum(sizes)), torch.empty(sum(sizes))
            before = _users(sent) + _users(found)
            wire.all_to_all(found, sent, sizes, sizes)
            late += _users(sent) + _users(found) > before
            waits.append(len(calls))
        return late, sorted(waits)[700]
    finally:
        os.sched_yield = kindly
        world.close()
        os.sched_setaffinity(0, cores)


def _users(x: Tensor) -> int:
    return int(torch._C._storage_Use_Count(x.untyped_storage()._cdata))
