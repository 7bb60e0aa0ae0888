"""A local run looked at from its folder: while it runs, when it is cancelled, and when nothing is left of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import plan_yaml
from planner.errors import BadInput
from runtime import local, status
from runtime.job import Job
from runtime.paths import Paths

PLAN = Path("plans/mlp-chimera.yaml")


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_is_seen_running_and_cancelled_from_its_folder_alone(tmp_path: Path) -> None:
    plan = plan_yaml.load(PLAN)
    run = local.launch(plan, tmp_path / "run", steps=10**6)
    until(lambda: status.of(tmp_path / "run").step >= 5)
    found = status.of(tmp_path / "run")
    assert (found.state, found.backend, found.job) == ("running", "local", None)
    assert found.loss and found.loss > 0 and found.left_s and found.left_s > 0
    assert f"step {found.step} of 1000000, loss" in status.text(found)
    status.cancel(tmp_path / "run")
    run.process.wait(20)
    assert status.of(tmp_path / "run").state == "cancelled"
    with pytest.raises(BadInput, match="does not run"):
        status.cancel(tmp_path / "run")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path).make()
    Job(steps=4).write(made)
    made.plan.write_text(PLAN.read_text())
    return made


def test_a_run_whose_supervisor_left_no_word_has_ended(paths: Paths) -> None:
    paths.pids.write_text(json.dumps({"0": 2**22 + 1}))
    assert status.of(paths.root).state == "ended"


def test_a_failed_run_tells_its_cause(paths: Paths) -> None:
    paths.outcome.write_text(
        json.dumps({"state": "failed", "rank": 1, "cause": "rank 1: odd", "exits": [0, 1]})
    )
    found = status.of(paths.root)
    assert (found.state, found.reason, found.step, found.loss) == ("failed", "rank 1: odd", 0, None)


def test_logs_are_told_with_their_file_and_by_rank(paths: Paths) -> None:
    paths.log(0).write_text("one\ntwo")
    paths.log(1).write_text("three\n")
    assert list(status.lines_of(paths.root, None, follow=False)) == [
        ("rank-00000", "one"),
        ("rank-00000", "two"),
        ("rank-00001", "three"),
    ]
    assert list(status.lines_of(paths.root, 1, follow=True, poll_s=0)) == [("rank-00001", "three")]
    with pytest.raises(BadInput, match="no log of rank 7"):
        list(status.lines_of(paths.root, 7, follow=False))


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no run folder"):
        status.of(tmp_path)
