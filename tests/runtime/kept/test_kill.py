"""A pruned run whose ranks are killed, and one that goes on under other plans: the same bits as if nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.kept import load_masks
from runtime import checkpoint as checkpoints
from runtime.launch import launch_local as launch
from tests.runtime.kept.pruned import pruned_plan

# Rank 1 ends within a sum of its third step, as a killed process does: nothing is said or closed.
KILLED = """
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sums = 0
add = dist.all_reduce


def counted(tensor, *given, **more):
    global sums
    sums += tensor.is_floating_point() and dist.get_rank() == 1
    marker = Path(__file__).with_suffix(".fell")
    if sums > 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return add(tensor, *given, **more)


dist.all_reduce = counted


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(n):
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters):
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.1, momentum=0.9, weight_decay=0.1)
"""


@pytest.mark.usefixtures("warm_starts")
def test_a_rank_killed_in_a_sum_of_kept_entries_and_a_restart_come_to_the_same_bits(tmp_path: Path) -> None:
    path, kept = tmp_path / "killed.py", tmp_path / "k"
    path.write_text(KILLED)
    fell = path.with_suffix(".fell")
    fell.touch()
    plan = pruned_plan(str(path), {}, kept, family="1f1b", workers=1, micros=2, micro=2, data=2)
    told = {"steps": 5, "save_every": 1, "kept": str(kept)}
    whole = launch(plan, tmp_path / "whole", **told).wait(300).check()
    fell.unlink()
    again = launch(plan, tmp_path / "again", restarts=1, **told).wait(300).check()
    assert fell.exists() and again.losses == whole.losses and sorted(whole.losses) == [1, 2, 3, 4, 5]
    ends = [checkpoints.latest(tmp_path / name / "checkpoints") for name in ("whole", "again")]
    want, have = (end.whole() for end in ends if end is not None)
    assert all(torch.equal(have[name], tensor) for name, tensor in want.items())
    for name, index in load_masks(kept).indices.items():
        rest = have[name].reshape(-1).clone()
        rest[torch.from_numpy(index).long()] = 0.0
        assert not rest.any()
