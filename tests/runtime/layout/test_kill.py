"""A rank of a group with tensors in parts is killed within a conversion: a restart comes to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.capture import capture
from planner.workload import workload as workloads
from runtime import checkpoint as checkpoints
from runtime.launch import launch_local as launch
from tests.runtime.layout.test_plans import in_parts
from tests.runtime.plans import plan_for

# Rank 1 ends within a conversion of its fourth batch or later, as a killed process does: nothing is said or closed.
KILLED = """
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

drawn, conversions = 0, 0
exchange = dist.all_to_all_single


def counted(*args, **options):
    global conversions
    conversions += drawn > 4 and dist.get_rank() == 1
    marker = Path(__file__).with_suffix(".fell")
    if conversions > 5 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange(*args, **options)


dist.all_to_all_single = counted


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(n):
    global drawn
    drawn += 1
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters):
    return torch.optim.AdamW([p for _, p in named_parameters], lr=0.01)
"""


@pytest.mark.usefixtures("warm_starts")
def test_a_rank_killed_in_a_conversion_and_a_restart_come_to_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "killed.py"
    path.write_text(KILLED)
    fell = path.with_suffix(".fell")
    fell.touch()
    graph = capture(workloads.load(str(path)), micro=2).graph
    plan = in_parts(
        plan_for(graph, str(path), workers=1, micros=2), {"0": "out", "2": "in", "4": "out"}, (2,)
    )
    whole = launch(plan, tmp_path / "whole", steps=5, save_every=1).wait(300).check()
    fell.unlink()
    again = launch(plan, tmp_path / "again", steps=5, save_every=1, restarts=1).wait(300).check()
    assert fell.exists() and again.losses == whole.losses and sorted(whole.losses) == [1, 2, 3, 4, 5]
    ends = [checkpoints.latest(tmp_path / name / "checkpoints") for name in ("whole", "again")]
    want, have = (end.whole() for end in ends if end is not None)
    assert want.keys() == have.keys() and all(torch.equal(have[name], x) for name, x in want.items())
