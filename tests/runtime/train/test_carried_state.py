"""Constructs that leave something in their buffers train in a run as their modules do, micro-batch by micro-batch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from planner.capture import capture
from planner.workload import Workload
from runtime.train import StepLoop, open_inline
from tests.planner.capture.constructs import EQUAL, OPAQUE
from tests.runtime.plans import plan_for
from tests.runtime.reference import batch_of

STEPS, MICRO, MICROS, SEED = 3, 2, 2, 7
DRAWS = {"dropout and noise"}  # a plan draws other numbers than the module


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(n, 3)


def workload_of(name: str) -> Workload:
    torch.manual_seed(0)
    module = EQUAL[name]()
    functions = {
        "build": lambda: copy.deepcopy(module),
        "batch": batch,
        "loss": F.mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD([x for _, x in parameters], 0.1),
    }
    return Workload(
        name="construct",
        where=name,
        arguments={},
        functions=functions,
        opaque=tuple(OPAQUE.get(name, ())),
    )


def own_losses(workload: Workload) -> list[float]:
    module = workload.build().train()
    optimizer = workload.optimizer(module.named_parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = []
        for micro in range(MICROS):
            inputs, targets = batch_of(workload, SEED, (step * MICROS + micro) * MICRO, MICRO)
            loss = F.mse_loss(module(inputs), targets)
            (loss / MICROS).backward()
            rows.append(float(loss.detach()))
        optimizer.step()
        losses.append(sum(rows) / MICROS)
    return losses


@pytest.mark.parametrize("name", [name for name in EQUAL if name not in DRAWS])
def test_a_construct_trains_in_a_run_as_its_module_does(name: str, tmp_path: Path) -> None:
    workload = workload_of(name)
    graph = capture(workload, micro=MICRO).graph
    plan = plan_for(graph, "construct", workers=1, micro=MICRO, micros=MICROS)
    training = open_inline(
        plan, tmp_path / "run", steps=STEPS, workload=workload, refuse=lambda _: None, seed=SEED
    )
    with StepLoop(training) as loop:
        batches = loop.batches()
        losses = [loop.step(next(batches)) for _ in range(STEPS)]
    assert losses == pytest.approx(own_losses(workload), rel=1e-5)
