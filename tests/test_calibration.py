"""From the folders of runs to a plan that knows of them, by the commands and by the functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright as sw
from benchmarks.fidelity import slowed
from planner.calibrate.refine import repredicted
from planner.cluster import Correction, Corrections
from planner.cluster import cluster as clusters
from planner.cluster import corrections as fitted
from planner.milp import Question, solve
from planner.plan import yaml as plan_yaml
from planner.profile import yaml as profile_yaml
from planner.show import proof_text
from planner.simulate import simulate_plan
from runtime.runfolder import Job, Paths
from tests.planner.milp.instances import cluster

TRUE = Corrections(
    forward=Correction(factor=1.5, samples=1),
    backward=Correction(factor=1.5, samples=1),
    hop=Correction(start_s=2e-4, samples=1),
    step_spread=0.0,
    rests_on=("the truth",),
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A profile, a cluster and a run of twelve steps that took half as long again as planned."""
    costs = slowed(sw.profile("mlp", device="roofline:H100-80GB", micro=(1,), layers=6), 10_000.0)
    machines = cluster(2, latency_s=1e-4, bandwidth=1e8)
    profile_yaml.save(costs, tmp_path / "profile.yaml")
    (tmp_path / "cluster.yaml").write_text(clusters.dump(machines))
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix={"pipeline": 2, "schedule": "1f1b"}))
    paths = Paths(tmp_path / "run").make()
    paths.plan.write_text(plan_yaml.dump(plan))
    Job(steps=12).write(paths)
    simulate_plan(repredicted(plan, TRUE), steps=12).save(paths.trace)
    return tmp_path


def planned(files: Path, *options: str) -> sw.Plan:
    out = files / "plan.yaml"
    fixed = ["--fix", "pipeline=2", "--fix", "schedule=1f1b", "--force", "-o", str(out)]
    assert sw.run([*asked(files), *fixed, *options]) == 0
    return plan_yaml.load(out)


def asked(files: Path) -> list[str]:
    return [
        "plan",
        f"--profile={files / 'profile.yaml'}",
        f"--cluster={files / 'cluster.yaml'}",
        "--batch=8",
    ]


def test_a_run_is_calibrated_and_planned_with(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files / "calibration.yaml"
    assert sw.run(["calibrate", str(files / "run"), "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["forward"]["factor"] == pytest.approx(1.5, rel=0.01)
    assert sw.run(["show", str(path)]) == 0
    assert "steps are then off by about" in capsys.readouterr().out
    known = planned(files, "--calibration", str(path))
    assert known.fitted == fitted.load_corrections(path) == sw.calibrate(files / "run")
    assert "corrected by 1 run (mlp layers=6, 1f1b data 1 x pipeline 2)" in proof_text(known)
    assert known.prediction.step_ns > 1.3 * planned(files).prediction.step_ns
    costs, machines = sw.load_profile(files / "profile.yaml"), sw.Cluster.load(files / "cluster.yaml")
    fix = {"pipeline": 2, "schedule": "1f1b"}
    same = sw.plan(costs, machines, batch=8, fix=fix, calibration=sw.calibrate(files / "run"))
    assert same.prediction == known.prediction
    assert planned(files, "--replan-from", str(files / "run")).prediction == known.prediction


def test_nothing_is_overwritten_and_a_folder_that_is_no_run_is_named(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "calibration.yaml").write_text("mine")
    assert sw.run(["calibrate", str(files / "run"), "-o", str(files / "calibration.yaml")]) == 2
    assert sw.run(["calibrate", str(files), "-o", str(files / "other.yaml")]) == 2
    assert "is no run folder" in capsys.readouterr().err
    assert (files / "calibration.yaml").read_text() == "mine"


def test_a_file_of_corrections_and_a_run_exclude_each_other(files: Path) -> None:
    options = ["--calibration", "c.yaml", "--replan-from", str(files / "run")]
    assert sw.run([*asked(files), *options]) == 2


def test_a_wrong_number_in_a_file_of_corrections_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(
        "version: 1\nstep_spread: 0.1\nrests_on: [a run]\nforward:\n  factor: -1.0\n  samples: 2\n"
    )
    with pytest.raises(sw.BadInput, match=r"calibration.yaml:5.*factor"):
        fitted.load_corrections(path)
