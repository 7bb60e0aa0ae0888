"""The gathered trace of a run: of the latest start whatever clocks say, and written by several at once."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from planner.plan import load
from planner.simulate import simulate_plan
from planner.timeline import Timeline
from runtime.runfolder import Outcome, Paths, result_of, trace_of


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path).make()
    made.job.write_text("{}")
    whole = simulate_plan(load(Path("plans/mlp-two-stages.yaml")), steps=2)
    for rank in range(2):
        whole.save(made.rank_trace(rank))
    return made


def test_all_who_gather_at_once_find_the_trace_and_leave_no_part_of_one(paths: Paths) -> None:
    """The supervisor of a job does, and who has waited for it."""
    begin, failed = threading.Barrier(8), []

    def gather() -> None:
        begin.wait()
        try:
            result_of(paths, 2, Outcome("done"))
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=gather) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [path.name for path in paths.root.glob("*.npz")] == [paths.trace.name]


def test_a_trace_that_is_newer_by_a_clock_that_was_set_back_counts(paths: Paths) -> None:
    before = result_of(paths, 2, Outcome("done")).timeline
    for rank in range(2):
        replace(before, step=before.step + 5).save(paths.rank_trace(rank))
        an_hour_ago = paths.trace.stat().st_mtime - 3600
        os.utime(paths.rank_trace(rank), (an_hour_ago, an_hour_ago))
    assert set(trace_of(paths, 2).step.tolist()) == {5, 6}
    assert set(result_of(paths, 2, Outcome("done")).timeline.step.tolist()) == {5, 6}
    assert trace_of(paths, 2).step.tolist() == result_of(paths, 2, Outcome("done")).timeline.step.tolist()


def test_a_run_that_is_opened_again_and_takes_no_step_keeps_its_trace(paths: Paths) -> None:
    """So `show` reads it after a run was opened for its weights alone."""
    whole = result_of(paths, 2, Outcome("done")).timeline
    for rank in range(2):
        Timeline().save(paths.rank_trace(rank))
    assert trace_of(paths, 2).step.tolist() == whole.step.tolist()
    assert result_of(paths, 2, Outcome("done")).timeline.step.tolist() == whole.step.tolist()
