"""Islands: their rounds are one data-parallel training, and any number of them in any order makes the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner.errors import BadInput
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import launch
from runtime.checkpoint import Checkpoint
from runtime.islands import (
    IslandsAsked,
    IslandsFolder,
    IslandsStatus,
    Outer,
    begin,
    islands_status,
    islands_text,
    start_islands,
)
from tests.captures import captured_of
from tests.runtime.plans import plan_for

pytestmark = pytest.mark.usefixtures("warm_starts")

MLP = "tests/runtime/workloads/mlp.py"
SHARDS, ROUNDS = 4, 3
ONE = Outer()


def plan(data: int = 1, workers: int = 1, **arguments: str) -> Plan:
    graph = captured_of(MLP, arguments, 2)[1].graph
    return plan_for(graph, MLP, arguments=arguments, workers=workers, micros=2, data=data)


def asked(steps: int = 1, outer: Outer = ONE, rounds: int = ROUNDS) -> IslandsAsked:
    return IslandsAsked(rounds=rounds, inner_steps=steps, shards=SHARDS, outer=outer)


def until_done(folder: IslandsFolder, count: int) -> IslandsStatus:
    for process in start_islands(folder, count):
        process.wait(timeout=120)
    return islands_status(folder)


def trained(root: Path, wanted: IslandsAsked, count: int = 2, **settings: object) -> IslandsStatus:
    found = until_done(begin(plan(), root, wanted, **settings), count)
    assert found.state == "done", "\n".join(path.read_text() for path in (root / "logs").glob("*"))
    return found


def weights(folder: Path) -> dict[str, Tensor]:
    last = checkpoints.latest(folder / "checkpoints")
    assert last is not None
    return last.whole()


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def test_one_step_a_round_is_the_data_parallel_training_to_rounding(tmp_path: Path) -> None:
    found = trained(tmp_path / "islands", asked())
    run = launch.launch_local(plan(data=SHARDS), tmp_path / "parallel", steps=ROUNDS).wait().check()
    assert apart(weights(tmp_path / "islands"), weights(tmp_path / "parallel")) < 1e-6
    for number, loss in found.losses.items():
        assert loss == pytest.approx(run.losses[number], rel=1e-6)
