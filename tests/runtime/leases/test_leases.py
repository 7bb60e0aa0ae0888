"""Tasks shared through a folder: taken once, taken over when their holder is gone, whatever clocks say."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from runtime.leases import Tasks
from runtime.leases.leases import FAILURES
from runtime.runfolder import of

NAMES = ["a", "b", "c"]


def held_by(tasks: Tasks, name: str, *, host: str, pid: int) -> Path:
    """Writes a claim as a process has left it."""
    path = tasks.folder / "claims" / name / "00001"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(replace(of(pid), host=host))))
    return path


def names(tasks: Tasks) -> list[str]:
    found = []
    for lease in tasks.work():
        with lease:
            found.append(lease.name)
            lease.done({})
    return found


def test_every_task_is_yielded_once_and_none_that_is_done(tmp_path: Path) -> None:
    assert sorted(names(Tasks(tmp_path, NAMES))) == NAMES
    assert names(Tasks(tmp_path, NAMES)) == []


def test_a_task_that_is_held_is_not_taken_and_one_let_go_is(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, ["a"])
    first = tasks._take("a")
    assert first is not None and tasks._take("a") is None
    with first:
        pass
    assert tasks._take("a") is not None


def test_a_task_of_a_process_that_has_ended_here_is_taken_at_once(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, ["a"])
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    held_by(tasks, "a", host=of(child).host, pid=child)
    assert tasks._take("a") is None
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert tasks._take("a") is not None


@pytest.mark.parametrize("jump_s", [-1e6, 0.0, 1e6])
def test_a_holder_elsewhere_is_gone_when_its_beat_stays_whatever_the_clocks(
    tmp_path: Path, jump_s: float
) -> None:
    tasks = Tasks(tmp_path, ["a"], patience_s=0.2)
    claim = held_by(tasks, "a", host="elsewhere", pid=os.getpid())
    for i in range(4):  # it beats: its clock may say what it likes
        when = time.time() + jump_s + i
        os.utime(claim, (when, when))
        assert tasks._take("a") is None
        time.sleep(0.1)
    time.sleep(0.2)
    taken = tasks._take("a")
    assert taken is not None and taken.path.name == "00002"


def test_a_task_that_fails_too_often_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    tasks = Tasks(tmp_path, NAMES)
    tries = 0
    for lease in tasks.work():
        with lease:
            if lease.name == "b":
                tries += 1
                lease.failed(f"no luck {tries}")
            else:
                lease.done({"x": 1})
    assert tries == FAILURES
    assert tasks.failures() == {"b": f"no luck {FAILURES}"}
    counts = tasks.counts()
    assert (counts.done, counts.aside, counts.held, counts.left) == (2, 1, 0, 0)
