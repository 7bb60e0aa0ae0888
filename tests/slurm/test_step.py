"""The watch over srun: ranks are told to stop even where the signal was lost, and a step that cannot end is given up."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from runtime.runfolder import Paths
from runtime.slurm import rank_records as steps
from runtime.slurm.rank_records import RankRecord, StepWatch
from tests.slurm.jobs import PATIENCE_S, until

ENDS_WITH_7 = "trap 'exit 7' USR1; touch ready; while :; do sleep 0.02; done"
NEVER_ENDS = "trap '' USR1; touch ready; while :; do sleep 0.02; done"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(steps, "LOOK_S", 0.01)
    found = Paths(tmp_path)
    (tmp_path / "tasks").mkdir()
    return found


def started(paths: Paths, ranks: int) -> None:
    for rank in range(ranks):
        RankRecord(rank=rank, generation=2, host="n1", node=0, pid=1).write(paths)


def waits(watch: StepWatch, script: str) -> int:
    root = watch.paths.root
    with subprocess.Popen(["sh", "-c", script], cwd=root, start_new_session=True) as step:
        try:
            until((root / "ready").exists, "it listens", PATIENCE_S)
            return watch.wait(step, signal.SIGUSR1)
        finally:
            step.kill()


def test_ranks_of_a_cancelled_run_are_told_to_stop_though_no_signal_came(paths: Paths) -> None:
    started(paths, 2)
    paths.cancelled.touch()
    watch = StepWatch(paths, 2, 2, lambda: False)
    assert waits(watch, ENDS_WITH_7) == 7 and not watch.gone


def test_no_rank_is_told_before_all_ranks_listen(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([True] * 5)

    def ask() -> bool:
        if next(asked, None) is None:
            started(paths, 2)
        return True

    started(paths, 1)
    assert waits(StepWatch(paths, 2, 2, ask), ENDS_WITH_7) == 7
    assert next(asked, None) is None


def test_a_step_that_outlives_a_failed_rank_is_given_up(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ENDS_S", 0.2)
    paths.failed(2).touch()
    watch = StepWatch(paths, 2, 2, lambda: False)
    assert waits(watch, NEVER_ENDS) == 1 and watch.gone


def test_a_step_whose_ranks_gave_way_or_fell_is_given_up_at_once_where_others_need_its_nodes(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun waits for tasks of a node that went away, and SLURM tells nobody else."""
    monkeypatch.setattr(steps, "GIVES_S", 0.1)
    for mark, wanted in (("gave way", False), ("failed", True)):
        paths.failed(2).write_text(mark)
        watch = StepWatch(paths, 2, 2, lambda: False, wanted=lambda wanted=wanted: wanted)  # type: ignore[misc]
        assert waits(watch, NEVER_ENDS) == 1 and watch.gone


def test_a_rank_that_failed_at_an_earlier_start_ends_nothing(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ENDS_S", 0.0)
    paths.failed(1).touch()
    watch = StepWatch(paths, 2, 2, lambda: False)
    assert waits(watch, "touch ready; sleep 0.3") == 0 and not watch.gone


@pytest.mark.parametrize("wanted", [True, False])
def test_ranks_that_did_not_listen_when_slurm_told_their_step_to_end_are_told_again_once(
    paths: Paths, wanted: bool
) -> None:
    """SLURM tells a step once, and it says so of the job for as long as the job has its nodes."""
    looked, again = iter(range(5)), list[str]()

    def asked() -> bool:
        if next(looked, None) is None and not paths.task(1).exists():
            assert not again  # one of two ranks would not have heard it
            started(paths, 2)
        return False

    started(paths, 1)
    watch = StepWatch(paths, 2, 2, asked, wanted=lambda: wanted, again=lambda: again.append("told"))
    assert waits(watch, "touch ready; sleep 1") == 0
    assert again == ["told"] * wanted
