"""A plan that an earlier version has written is read, judged and run as one of today."""

from __future__ import annotations

from pathlib import Path

from planner.cluster import Cluster
from planner.plan import dump, load
from planner.verify import violations
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.compare import distance, expected, run

WRITTEN = Path(__file__).with_name("version_1.yaml")
CLUSTER = Path("plans/clusters/laptop.yaml")


def test_a_plan_of_version_1_is_verified_and_trains_as_one_process(pool: Pool, tmp_path: Path) -> None:
    plan = load(WRITTEN)
    again = tmp_path / "again.yaml"
    again.write_text(dump(plan))
    assert "version: 1\n" in WRITTEN.read_text() and load(again) == plan
    _, captured = captured_of(plan.model.workload, {}, plan.batch.micro)
    assert violations(plan, graph=captured.graph, cluster=Cluster.load(CLUSTER)) == []
    have = run(pool, plan, tmp_path / "run", steps=3)
    assert distance(expected(plan, tmp_path / "run", steps=3), have).worst() < 1e-5
