"""Bytes in use, counted storage by storage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from planner.capture import LiveBytes
from planner.timeline import Timeline
from runtime.execute import static_bytes
from runtime.runfolder import Paths
from runtime.runfolder import job as jobs
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.test_equality import HERE, plan_of

KIB = 1024


def kib(n: int) -> Tensor:
    return torch.ones(n * 256)


def test_a_storage_counts_from_its_making_to_its_end() -> None:
    with LiveBytes(()) as live:
        a = kib(4)
        b = a.view(2, -1)  # no storage of its own
        c = a * 2
        assert live.now == 8 * KIB
        del a, c
        assert live.now == 4 * KIB  # the view holds it
        del b
        assert live.now == 0 and live.peak == 8 * KIB


def test_what_was_there_before_does_not_count() -> None:
    a = kib(4)
    with LiveBytes([a]) as live:
        a.add_(1)
        a.view(2, -1)
        assert live.peak == 0


def test_what_autograd_saves_counts_until_the_backward() -> None:
    module, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.ones(16, 16)
    with LiveBytes([x, *module.parameters()]) as live:
        y = module(x)
        before = live.now
        y.sum().backward()
        del y
        after = live.now
    assert before >= 1 * KIB
    assert after == static_bytes(p.grad for p in module.parameters() if p.grad is not None)


def test_views_of_one_storage_count_once() -> None:
    a = kib(4)
    assert static_bytes([a, a[:10], a.view(2, -1)]) == 4 * KIB


def peaks(pool: Pool, folder: Path, **shape: object) -> list[int]:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=2, micro=16, **shape)
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, 16))
    paths, _ = prepare(model, folder, job_of(plan, 2, {"memory_step": 2}))
    pool.run("tests.runtime.jobs:whole_run", 2, folder=str(paths.root))
    found = [Timeline.load(Paths(folder).rank_trace(rank)).peak_bytes[rank] for rank in range(2)]
    assert jobs.read(paths).memory_step == 2
    return found


def test_a_rank_holds_what_its_schedule_says(pool: Pool, tmp_path: Path) -> None:
    all_first = peaks(pool, tmp_path / "gpipe", family="gpipe", micros=8)
    in_turn = peaks(pool, tmp_path / "1f1b", family="1f1b", micros=8)
    again = peaks(pool, tmp_path / "again", family="gpipe", micros=8, recompute=(0, 1))
    assert in_turn[0] < 0.6 * all_first[0] and in_turn[1] < 0.4 * all_first[1]
    assert again[0] < 0.5 * all_first[0] and again[1] < 0.6 * all_first[1]


HELD = """
import torch
from runtime.execute import Resident

def touched(mib):
    return torch.ones(mib * 2**18)

gone = touched(256)
del gone
held = Resident()
large = touched(128)
del large
grown = held.most_bytes - held.base_bytes
assert held.base_bytes > 0 and abs(grown - 2**27) < 2**25, grown  # and not the 256 MiB that were held before
"""


def test_the_memory_of_a_process_is_told_from_when_one_asks() -> None:
    """In a process of its own: one that has trained keeps what it freed, and takes it again."""
    subprocess.run([sys.executable, "-c", HELD], cwd=Path(__file__).parents[3], check=True)


def test_more_micro_batches_take_no_more_memory_under_1f1b(pool: Pool, tmp_path: Path) -> None:
    few, many = (peaks(pool, tmp_path / str(n), family="1f1b", micros=n) for n in (4, 16))
    assert all(b <= 1.02 * a for a, b in zip(few, many, strict=True))
