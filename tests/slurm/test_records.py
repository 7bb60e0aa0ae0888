"""A run that SLURM has made is read like any other, however it was launched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.plan import yaml as plan_yaml
from runtime.runfolder import outcome
from tests.runtime.readable import reads
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, launch, paced_plan, until
from tests.slurm.warm import Warm


@pytest.mark.usefixtures("warm_starts")
def test_a_run_that_the_command_has_waited_for_is_read_and_its_page_says_measured_first(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(paced_plan()))
    (tmp_path / "site.yaml").write_text(f"version: 1\npython: {warm.python}\n")
    words = [
        f"{tmp_path}/plan.yaml",
        "--slurm",
        "--wait",
        "--device=cpu",
        "--steps=5",
        "--json",
        f"--run={tmp_path}/run",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", "launch", *words, f"--site={tmp_path}/site.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["state"] == "done" and said["job"] > 0 and len(said["steps"]) == 5
    assert said["measured_step_ns"] > said["measured_idle_ns"] > 0
    reads(tmp_path / "run", 5, tmp_path / "page.html")


def test_a_run_that_nobody_has_waited_for_is_read(
    cluster: Cluster, warm: Warm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = launch(warm, paced_plan(), tmp_path / "run", steps=5, save_every=3)
    until(lambda: outcome.outcome_of(run.paths) is not None, "the outcome", PATIENCE_S)
    until(run.paths.trace.exists, "the supervisor gathers", 20)
    reads(tmp_path / "run", 5, tmp_path / "page.html")
    assert "step: measured " in capsys.readouterr().out
