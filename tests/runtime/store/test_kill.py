"""A node that dies while samples are exchanged: the run goes on, its part is read again, and losses are the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from planner.plan import Plan
from runtime.launch import launch_local as launch
from runtime.runfolder import Paths
from tests.runtime.test_equality import plan_of

LENGTH = 20
KILLED = f"""
import os, signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

exchanged = 0
exchange = dist.all_to_all_single
HERE = Path(__file__)


def counted(*given, **more):
    global exchanged
    exchanged += dist.get_rank() == 1
    fell = HERE.with_suffix(".fell")
    if exchanged > 3 and not fell.exists():
        fell.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange(*given, **more)


dist.all_to_all_single = counted


class Logged(torch.utils.data.Dataset):
    def __len__(self):
        return {LENGTH}

    def __getitem__(self, index):
        with HERE.with_suffix(".reads").open("a") as file:
            file.write(f"{{os.getpid()}} {{index}}\\n")
        return torch.full((4,), float(index)).sin(), index % 3


def dataset():
    return Logged()


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(n):
    return torch.randn(n, 4), torch.randint(3, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)
"""


def on_two_nodes(plan: Plan) -> Plan:
    rows = tuple(x.model_copy(update={"node": x.rank, "slot": 0}) for x in plan.places)
    return plan.model_copy(update={"places": rows})


@pytest.mark.usefixtures("warm_starts")
def test_a_node_that_dies_reads_its_part_again_and_losses_are_equal_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "killed.py"
    path.write_text(KILLED)
    fell, reads = path.with_suffix(".fell"), path.with_suffix(".reads")
    fell.touch()  # not while it is captured here
    plan = on_two_nodes(plan_of(str(path), {}, family="1f1b", workers=1, micros=2, micro=2, data=2))
    whole = launch(plan, tmp_path / "whole", steps=9, save_every=1).wait(300).check()
    fell.unlink()
    reads.unlink()
    settings: dict[str, object] = {"store": "ram", "store_steps": 1, "save_every": 1, "restarts": 1}
    again = launch(plan, tmp_path / "again", steps=9, **settings).wait(300).check()  # type: ignore[arg-type]
    assert fell.exists() and again.losses == whole.losses and sorted(whole.losses) == [*range(1, 10)]
    ranks = set(json.loads(Paths(tmp_path / "again").pids.read_text()).values())
    rows = [tuple(map(int, line.split())) for line in reads.read_text().splitlines()]
    by_process = {process: [index for each, index in rows if each == process] for process, _ in rows}
    last = Counter(index for process, own in by_process.items() if process in ranks for index in own)
    assert last == Counter(range(LENGTH)), "after the restart each node has read its part once"
    twice = [own for process, own in by_process.items() if len(own) == LENGTH // 2]
    assert len(twice) == 4 and sorted(twice[0] + twice[1]) == list(range(LENGTH)), "as before it"
