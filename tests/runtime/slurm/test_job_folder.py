"""One job at a time trains in a run folder: who takes the turn, who is refused, and who may follow the dead."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import yaml as plan_yaml
from runtime.launch import launch_inline
from runtime.runfolder import Paths, RunProcess
from runtime.slurm import job_folder as turn
from runtime.slurm import state


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path).make()


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What SLURM says of jobs, one after another and the last for ever; nothing of those that are not here."""
    said: dict[str, list[str]] = {}

    def word(job: int | str) -> str:
        rows = said.get(str(job), [""])
        return rows.pop(0) if len(rows) > 1 else rows[0]

    monkeypatch.setattr(state, "word", word)
    monkeypatch.setattr(turn, "LOOK_S", 0.001)
    monkeypatch.setattr(turn, "ENDING_S", 0.1)
    return said


def leave(paths: Paths, job: str) -> None:
    """A turn whose supervisor is on a host that cannot be looked at."""
    paths.turns.mkdir()
    left = turn.FolderLock(job=job, holder=RunProcess("elsewhere", 1, "then"))
    (paths.turns / "00001").write_text(json.dumps(asdict(left)))


def test_a_turn_that_is_over_leaves_nothing_behind(paths: Paths, words: dict[str, list[str]]) -> None:
    for job in ("7", "8_1", "8_2"):
        with turn.taken(paths, job):
            assert [path.name for path in paths.turns.iterdir()] == ["00001"]
        assert not list(paths.turns.iterdir())


def test_a_second_job_is_refused_and_told_whose_turn_it_is(paths: Paths, words: dict[str, list[str]]) -> None:
    with turn.taken(paths, "7"):
        for job in ("8", "7"):  # the same job too, while its supervisor lives
            with (
                pytest.raises(turn.FolderBusy, match="job 7 trains in this folder") as caught,
                turn.taken(paths, job),
            ):
                pass
            assert caught.value.job == "7"
        assert [path.name for path in paths.turns.iterdir()] == ["00001"]


@pytest.mark.parametrize("word", ["RUNNING", "SUSPENDED", state.UNKNOWN, "COMPLETING"])
def test_a_supervisor_on_another_host_holds_its_turn_while_its_job_may_run(
    word: str, paths: Paths, words: dict[str, list[str]]
) -> None:
    leave(paths, "7")
    words["7"] = [word]
    with pytest.raises(turn.FolderBusy), turn.taken(paths, "8"):
        pass


@pytest.mark.parametrize("said", [[""], ["FAILED"], ["PENDING"], ["COMPLETING", "COMPLETING", ""]])
def test_whose_job_has_ended_is_followed(said: list[str], paths: Paths, words: dict[str, list[str]]) -> None:
    leave(paths, "7")
    words["7"] = said
    with turn.taken(paths, "8"):
        assert [path.name for path in paths.turns.iterdir()] == ["00002"], "and loses its lock"


def test_no_run_of_this_machine_begins_beside_a_job(paths: Paths, words: dict[str, list[str]]) -> None:
    plan = plan_yaml.load(Path("plans/mlp-chimera.yaml"))
    paths.launching.mkdir()  # as in every run folder
    leave(paths, "7")
    words["7"] = ["RUNNING"]
    with pytest.raises(BadInput, match="job 7 trains in this folder"):
        launch_inline(plan, paths.root, steps=1)
    words["7"] = [""]
    assert launch_inline(plan, paths.root, steps=1).check().losses


def test_a_job_that_was_queued_again_follows_itself(paths: Paths, words: dict[str, list[str]]) -> None:
    leave(paths, "7")
    words["7"] = ["RUNNING"]  # as it does, elsewhere than before
    with turn.taken(paths, "7"):
        pass


def test_of_many_that_come_at_once_after_a_dead_one_one_gets_the_turn(
    paths: Paths, words: dict[str, list[str]]
) -> None:
    leave(paths, "7")
    inside, refused = [], []
    begin, end = threading.Barrier(8), threading.Barrier(8)

    def come(number: int) -> None:
        begin.wait()
        try:
            with turn.taken(paths, f"{number}_1"):
                inside.append(number)
                end.wait()
        except turn.FolderBusy:
            refused.append(number)
            end.wait()

    threads = [threading.Thread(target=come, args=(number,)) for number in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(inside), len(refused)) == (1, 7)


def test_a_supervisor_that_was_followed_knows_it_and_removes_no_lock_of_another(
    paths: Paths, words: dict[str, list[str]]
) -> None:
    """As where SLURM starts a job again, since the node of its supervisor cannot be reached."""
    leave(paths, "7")
    words["7"] = [""]
    with turn.taken(paths, "7") as first:
        assert first() and [path.name for path in paths.turns.iterdir()] == ["00002"]
        (paths.turns / "00002").unlink()
        leave_again = asdict(turn.FolderLock(job="7", holder=RunProcess("elsewhere", 2, "later")))
        (paths.turns / "00002").write_text(json.dumps(leave_again))
        assert not first()
    assert [path.name for path in paths.turns.iterdir()] == ["00002"]
