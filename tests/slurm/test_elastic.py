"""With fewer nodes a run goes on under a plan for those that are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster import cluster as clusters
from planner.errors import BadInput
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import yaml as plan_yaml
from planner.profile import yaml as profile_yaml
from planner.workload import load
from runtime.launch import launch_inline
from runtime.slurm import Elastic, parse
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PACED, PATIENCE_S, Gate, launch, task, until_step
from tests.slurm.warm import Warm

MACHINES = """\
version: 1
name: four
nodes: [{count: 4, device: cpu, devices_per_node: 1, memory_bytes: 4294967296}]
links: {rack: {latency_s: 1.0e-9, bandwidth_bytes_per_s: 1.0e+13}}
"""


def test_four_nodes_one_lost_three_with_a_new_plan(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACED_GATE_AT", "12")  # four of its steps
    workload = load(PACED, {"pace_s": "0.02"})
    profile = measure.profile(
        workload, device="roofline:P100-16GB", micros=(1, 2, 3, 4), precision="fp32", split=None
    )
    profile_yaml.save(profile, tmp_path / "profile.yaml")
    (tmp_path / "cluster.yaml").write_text(MACHINES)
    machines = clusters.load(tmp_path / "cluster.yaml")
    plan = solve(Question(profile=profile, cluster=machines, batch=12, fix={"pipeline": 1, "data": 4}))
    assert len(plan.places) == 4
    flexible = Elastic(
        fewest=3,
        most=4,
        profile=tmp_path / "profile.yaml",
        cluster=tmp_path / "cluster.yaml",
        fix={"pipeline": "1"},
    )
    run = launch(
        warm,
        plan,
        tmp_path / "run",
        steps=6,
        save_every=2,
        options={"partition": "four"},
        flexible=flexible,
    )
    until_step(run, 3)
    cluster.kill_node(4)
    gate.open()
    try:
        done = run.wait(PATIENCE_S).check()
    finally:
        cluster.start_node(4)
        cluster.await_nodes()
    again = plan_yaml.load(run.paths.plan)
    assert (len(again.places), again.batch.samples) == (3, 12)
    assert [task(run.paths, rank).host for rank in range(3)] == ["n1", "n2", "n3"]
    alone = launch_inline(plan, tmp_path / "inline", steps=6)
    assert done.losses == pytest.approx(alone.losses, rel=1e-6)


@pytest.mark.parametrize("text", ["4", "0:4", "4:3", "a:b", "3:4:5"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--elastic"):
        parse(text)
