"""A rank that is killed while it gathers parameters: the others end with it, and the run goes on as if nothing was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.launch import launch_local as launch
from runtime.runfolder import Paths
from runtime.runfolder.result import RunFailed
from tests.runtime.local.test_supervise import alive
from tests.runtime.test_equality import plan_of

# Rank 1 ends within the seventh gather after its fourth batch, as a killed process does: nothing is said or closed.
KILLED = """
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

drawn, gathers = 0, 0
gather = dist.all_gather


def counted(*given, **more):
    global gathers
    gathers += drawn > 4 and dist.get_rank() == 1
    marker = Path(__file__).with_suffix(".fell")
    if gathers > 6 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return gather(*given, **more)


dist.all_gather = counted


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
def test_a_rank_killed_in_a_gather_ends_the_others_and_a_restart_is_equal_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "killed.py"
    path.write_text(KILLED)
    fell = path.with_suffix(".fell")
    fell.touch()
    plan = plan_of(str(path), {}, family="1f1b", workers=1, micros=2, micro=2, data=2, sharing="parameters")
    whole = launch(plan, tmp_path / "whole", steps=5, save_every=1).wait(300).check()
    fell.unlink()
    alone = launch(plan, tmp_path / "alone", steps=5, save_every=1).wait(300)
    paths = Paths(tmp_path / "alone")
    assert (alone.state, alone.rank) == ("failed", 1) and alive(paths) == []
    with pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL"):
        alone.check()
    assert json.loads(paths.pids.read_text()).keys() == {"0", "1"}
    fell.unlink()
    again = launch(plan, tmp_path / "again", steps=5, save_every=1, restarts=1).wait(300).check()
    assert fell.exists() and again.losses == whole.losses and sorted(whole.losses) == [1, 2, 3, 4, 5]
