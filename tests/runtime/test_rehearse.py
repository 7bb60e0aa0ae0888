"""A rank alone does what it does among others: the same bytes at its peak, the same actions."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan import Plan
from planner.timeline import Timeline
from runtime.local import job_of, prepare
from runtime.paths import Paths
from runtime.rehearse import rehearse
from runtime.train import Model
from tests.pool import Pool
from tests.runtime.jobs import captured_of
from tests.runtime.test_equality import HERE, plan_of

Workload = tuple[str, dict[str, str]]
BRANCHES: Workload = (HERE + "branches.py", {"double": "False"})
UNET: Workload = ("unet3d", {"size": "tiny"})
NORMALISED: Workload = (HERE + "normalised.py", {})
COUNTED: Workload = (HERE + "branches.py", {"double": "False", "counted": "True"})


def run_peaks(pool: Pool, plan: Plan, folder: Path) -> list[int]:
    """Of every rank of a real run, in its third step."""
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    prepare(model, folder, job_of(plan, 3, {"memory_step": 3}))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(folder))
    ranks = range(len(plan.places))
    return [Timeline.load(Paths(folder).rank_trace(rank)).peak_bytes[rank] for rank in ranks]


def check_peaks(pool: Pool, plan: Plan, folder: Path) -> None:
    real = run_peaks(pool, plan, folder)
    found = rehearse(plan, steps=1)
    here = {each.rank: each.rehearsed_bytes for each in found.peaks}
    assert here == {rank: real[rank] for rank in here}


@pytest.mark.parametrize(
    ("workload", "shape"),
    [
        (BRANCHES, {"family": "chimera", "workers": 2, "micros": 4}),
        (BRANCHES, {"family": "zb-v", "workers": 2, "micros": 5}),
        (BRANCHES, {"family": "zb-h1", "workers": 3, "micros": 6, "recompute": (0, 2)}),
        (UNET, {"family": "1f1b", "workers": 3, "micros": 6}),
        (UNET, {"family": "chimera-zb", "workers": 2, "micros": 4}),
        (NORMALISED, {"family": "1f1b", "workers": 2, "micros": 3, "data": 2}),
        (COUNTED, {"family": "gpipe", "workers": 2, "micros": 4, "data": 2, "shard": True}),
    ],
    ids=lambda part: Path(part[0]).stem if isinstance(part, tuple) else part["family"],
)
def test_the_rehearsed_peak_is_that_of_a_run(
    workload: Workload, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    check_peaks(pool, plan_of(workload[0], workload[1], **shape), tmp_path)
