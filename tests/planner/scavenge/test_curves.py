"""Curves of jobs: from plans of several sizes, or from a table; plans of two trainings are no curve."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwright as sw
from planner import plan as plans
from planner.errors import BadInput
from planner.plan import Plan
from planner.scavenge import Curve, ElasticJob, curve_of_plans, jobs_in, repeated

ROOT = Path(__file__).parents[3]


def sized(plan: Plan, nodes: int, step_ns: int) -> Plan:
    """Returns a plan as if its ranks were on so many nodes and its step took so long."""
    places = tuple(place.model_copy(update={"node": place.rank % nodes}) for place in plan.places)
    prediction = plan.prediction.model_copy(update={"step_ns": step_ns})
    return plan.model_copy(update={"places": places, "prediction": prediction})


PLAN = plans.load(ROOT / "plans" / "mlp-two-stages.yaml")


def test_a_curve_has_the_fastest_plan_of_every_number_of_nodes(tmp_path: Path) -> None:
    for i, (nodes, step_ns) in enumerate([(1, 10**9), (2, 6 * 10**8), (2, 5 * 10**8)]):
        (tmp_path / f"devices-{i}.yaml").write_text(plans.dump(sized(PLAN, nodes, step_ns)))
    (job,) = jobs_in(tmp_path)
    samples = PLAN.batch.samples
    assert job.curve == Curve(rates={1: samples, 2: 2.0 * samples})
    assert job.curve.rate(3) == 0.0
    assert job.curve.in_units("speed-up").rates == {1: 1.0, 2: 2.0}
    assert [job.curve.fitting(n) for n in (0, 1, 5)] == [0, 1, 2]


def test_plans_of_two_trainings_are_refused() -> None:
    other = PLAN.model_copy(update={"batch": PLAN.batch.model_copy(update={"samples": 999})})
    with pytest.raises(BadInput, match=r"b: has the global batch 999, and a has"):
        curve_of_plans({Path("a"): PLAN, Path("b"): other})


def test_a_folder_of_folders_has_a_job_each_and_jobs_are_repeated(tmp_path: Path) -> None:
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "curve.csv").write_text("nodes,samples_per_s\n2,20\n1,12.5\n")
    (tmp_path / "empty").mkdir()
    jobs = jobs_in(tmp_path)
    assert [job.name for job in jobs] == ["large", "small"]
    assert list(jobs[0].curve.rates.items()) == [(1, 12.5), (2, 20.0)]
    assert [job.name for job in repeated(jobs, 5)] == ["large", "small", "large#1", "small#1", "large#2"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("nodes,rate\n1,2\n", ":1: has no heads"),
        ("nodes,samples_per_s\n1,2\n1,3\n", ":3: '1,3' is no row"),
        ("nodes,samples_per_s\n1,-2\n", ":2: '1,-2' is no row"),
        ("nodes,samples_per_s\n1\n", ":2: '1' is no row"),
        ("nodes,samples_per_s\n", "has no row"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "curve.csv").write_text(table)
    with pytest.raises(BadInput, match=said):
        jobs_in(tmp_path)


def test_a_folder_without_plans_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no plans"):
        jobs_in(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        jobs_in(tmp_path / "gone")


def test_the_worth_of_a_job_has_its_weight() -> None:
    assert ElasticJob(name="a", curve=Curve(rates={1: 2.0}), weight=3.0).worth(1) == 6.0


def test_the_command_prints_a_row_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("0,a,1\n0,b,1\n100,c,1\n200,a,0\n300,b,0\n400,c,0\n")
    (tmp_path / "curve.csv").write_text("nodes,samples_per_s\n1,10\n2,18\n3,24\n")
    words = ["scavenge", "replay", str(tmp_path / "log.csv"), "--jobs", str(tmp_path), "--at-once", "1"]
    assert sw.run([*words, "--look-ahead", "60"]) == 0
    said = capsys.readouterr().out
    assert "3 nodes" in said and "equal share" in said and "0.821" in said and "ceiling" in said
    assert sw.run([*words, "--weight", "b=2", "--json"]) == 2
    assert sw.run([*words, "--unit", "miles"]) == 2
    assert sw.run([*words, "--format", "xls"]) == 2
