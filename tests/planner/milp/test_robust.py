"""Degenerate questions have answers, and the same question the same bytes, in whatever process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from planner.cluster import Cluster, Link, Links, NodeGroup
from planner.errors import Infeasible
from planner.milp import Question, solve
from planner.profile import Profile, Seconds
from planner.verify import violations
from tests.planner.milp.instances import Block, chain, cluster, profile

ANSWERS = """
from planner.explore import frontier
from planner.milp import Question, solve
from planner.plan import dump
from tests.planner.milp.instances import chain, cluster, profile

costs = profile(chain(7, 5, skips=2), micros=(1, 2))
print(dump(solve(Question(profile=costs, cluster=cluster(2, 2, memory=250_000), batch=8))))
narrow = Question(profile=costs, cluster=cluster(2), batch=4, schedules=("1f1b", "listed"))
for row in frontier(narrow, most=3).rows:
    print(dump(row.plan))
"""


def answers(seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


def test_another_process_with_another_hash_seed_writes_the_same_bytes() -> None:
    first = answers("1")
    assert first.count("version: 2") >= 3
    assert answers("12345") == first


def slow_node() -> Cluster:
    nodes = (
        NodeGroup(count=2, device="A100-80GB", devices_per_node=2),
        NodeGroup(count=1, device="V100-32GB", devices_per_node=2),
    )
    return Cluster(name="slow", nodes=nodes, links=cluster(2, 2).links)


def far_apart() -> Cluster:
    """Links so slow that every message costs more than the whole step."""
    link = Link(latency_s=1.0, bandwidth_bytes_per_s=10.0)
    group = NodeGroup(count=4, device="cpu", devices_per_node=1, memory_bytes=1 << 40)
    return Cluster(name="far", nodes=(group,), links=Links(node=link, rack=link, cluster=link))


def free(count: int) -> Profile:
    """Layers that take next to no time."""
    blocks = [replace(block, forward=1, input_grad=1, weight_grad=1) for block in chain(count, 1)]
    made = profile(blocks)
    return replace(made, optimizer=replace(made.optimizer, seconds_per_parameter=Seconds(median=0.0)))


def bare(count: int) -> Profile:
    """No parameters, nothing kept."""
    return profile(
        [
            Block(forward=9, input_grad=9, weight_grad=9, out=4, own=0, weight=0, reads=(k - 1,))
            for k in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("costs", "machines", "batch"),
    [
        pytest.param(profile(chain(1, 0)), cluster(1), 1, id="one layer, one device, one sample"),
        pytest.param(profile(chain(1, 0)), cluster(7), 1, id="one layer and one sample on seven devices"),
        pytest.param(profile(chain(2, 0)), cluster(13), 13, id="a prime of everything"),
        pytest.param(profile(chain(5, 0)), cluster(3, 3), 2, id="fewer samples than devices"),
        pytest.param(
            profile(chain(5, 0), micros=(4,)), cluster(2), 4, id="one micro-batch that is the batch"
        ),
        pytest.param(profile(chain(5, 0), micros=(3, 5)), cluster(2), 15, id="micro-batches of odd sizes"),
        pytest.param(replace(profile(chain(8, 2)), device="A100-80GB"), slow_node(), 8, id="a slow node"),
        pytest.param(profile(chain(6, 2)), far_apart(), 8, id="links slower than the work"),
        pytest.param(free(4), cluster(2), 4, id="layers that take next to no time"),
        pytest.param(bare(4), cluster(2), 4, id="nothing to train"),
        pytest.param(profile(chain(6, 2, loose=True, skips=3)), cluster(2), 4, id="no chain"),
    ],
)
def test_a_degenerate_question_has_a_plan_that_holds(costs: Profile, machines: Cluster, batch: int) -> None:
    plan = solve(Question(profile=costs, cluster=machines, batch=batch))
    assert violations(plan, profile=costs, cluster=machines) == []
    assert plan.certificate is not None
    assert plan.certificate.gap == 0
    assert plan.batch.micro * plan.batch.micros * plan.axes.data == batch


def test_links_that_are_too_slow_leave_one_device() -> None:
    plan = solve(Question(profile=profile(chain(6, 2)), cluster=far_apart(), batch=8))
    assert len(plan.places) == 1


def test_a_model_that_fits_nowhere_says_what_is_missing() -> None:
    with pytest.raises(Infeasible, match="bytes short") as raised:
        solve(Question(profile=profile(chain(4, 1)), cluster=cluster(2, memory=1000), batch=2))
    assert "would fit" in str(raised.value)
