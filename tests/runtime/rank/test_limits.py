"""From the free solver to two ranks: a plan that `plan` gives and `verify` accepts runs, and trains as one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner import measure
from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.profile import Profile
from planner.verify import violations
from planner.workload import load
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run
from tests.runtime.test_equality import HERE

STATES = HERE + "states.py"
NODE = NodeGroup(count=1, device="cpu", devices_per_node=2, memory_bytes=4 << 30)
LINK = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e10)
MACHINES = Cluster(name="two", nodes=(NODE,), links=Links(node=LINK))


@cache
def costs(kind: str) -> Profile:
    return measure.profile(load(STATES, {"kind": kind}), "roofline:cpu", micros=(2,))


def question(kind: str, **fix: object) -> Question:
    return Question(profile=costs(kind), cluster=MACHINES, batch=8, fix=fix)


@pytest.mark.parametrize(
    ("kind", "replicated"),
    [
        ("spectral", True),
        ("parametrised", True),
        ("smoothed", True),
        ("blind", True),
        ("synchronised", True),
        ("ema", False),
        ("bank", False),
        ("rows", False),
    ],
)
def test_what_the_free_solver_chooses_runs_on_two_ranks_as_on_one(
    kind: str, replicated: bool, pool: Pool, tmp_path: Path
) -> None:
    fix = {"data": 2} if replicated else {"devices": 2, "pipeline": 2}
    for asked in (question(kind), question(kind, **fix)):
        plan = solve(asked)
        assert violations(plan, profile=asked.profile, cluster=MACHINES) == []
        assert replicated or plan.axes.data == 1
    if kind != "synchronised":  # its statistics are those of all replicas, not of one process
        have = run(pool, plan, tmp_path, steps=2)
        assert len(plan.places) == 2
        assert distance(expected(plan, tmp_path, steps=2), have).worst() <= 1e-12


@pytest.mark.parametrize(
    ("kind", "named"), [("ema", "2.ema"), ("bank", "2.queue"), ("rows", "0.rows.weight")]
)
def test_replicas_that_are_fixed_are_refused_by_plan_with_the_cause(kind: str, named: str) -> None:
    with pytest.raises(BadInput, match=rf"^fix data=2: the forward pass writes .*'{named}'.*data: 1"):
        solve(question(kind, data=2))
