"""Whose folder a run takes, and that one launch at a time prepares it; nothing else is written, filled or chmodded."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import load
from runtime import runfolder
from runtime.runfolder import Job, Outcome, Paths, RunProcess, claim, holder, tell
from runtime.train import prepare_folder
from tests.test_hostile import facts
from tests.warm_python import WarmPython

PLAN = load(Path("plans/mlp-two-stages.yaml"))
ROOT = Path(__file__).parents[3]


def launch(folder: Path) -> Paths:
    return prepare_folder(PLAN, folder, Job(steps=1))[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def linked(name: str) -> Callable[[Path, Path], Path]:
    """A right run folder in which one name is a link to somebody else's file or folder."""

    def make(folder: Path, foreign: Path) -> Path:
        paths = launch(folder / "run")
        path = paths.root / name
        if path.is_dir():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
        path.unlink(missing_ok=True)
        path.symlink_to(foreign if name in ("checkpoints", "logs", "turns") else foreign / "precious.txt")
        return paths.root

    return make


def other_owner(folder: Path, foreign: Path) -> Path:
    made = folder / "empty"
    made.mkdir(mode=0o755)
    os.chown(made, 12345, -1)
    return made


def inner_of_other_owner(folder: Path, foreign: Path) -> Path:
    paths = launch(folder / "run")
    os.chown(paths.checkpoints, 12345, -1)
    return paths.root


def link_to(name: str) -> Callable[[Path, Path], Path]:
    def make(folder: Path, foreign: Path) -> Path:
        (folder / "real").mkdir(mode=0o755)
        link = folder / "link"
        link.symlink_to(folder / name)
        return link

    return make


def piped(folder: Path, foreign: Path) -> Path:
    paths = launch(folder / "run")
    paths.heartbeat.unlink(missing_ok=True)
    os.mkfifo(paths.heartbeat)
    return paths.root


def held_elsewhere(folder: Path, foreign: Path) -> Path:
    paths = launch(folder / "run")
    paths.holder.write_text(json.dumps(asdict(RunProcess("elsewhere", 7, "then"))))
    return paths.root


def launched_elsewhere(folder: Path, foreign: Path) -> Path:
    paths = launch(folder / "run")
    (paths.launching / "00001").write_text(json.dumps(asdict(RunProcess("elsewhere", 7, "then"))))
    return paths.root


def nowhere(folder: Path, foreign: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "run"


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "another user's": (other_owner, "belongs to another user, number 12345"),
    "another user's inside": (inner_of_other_owner, r"checkpoints: belongs to another user"),
    "somebody's files": (lambda folder, foreign: foreign, "is neither empty nor a run folder"),
    "a link to a folder": (link_to("real"), "is a link .allowed: the folder itself, .*real"),
    "a link to nothing": (link_to("gone"), "is a link"),
    "a file": (lambda folder, foreign: foreign / "precious.txt", "Not a directory"),
    "below a file": (nowhere, "cannot be a run folder"),
    "a name too long": (lambda folder, foreign: folder / ("x" * 300), "File name too long"),
    "a pipe inside": (piped, "heartbeat: is a link, a pipe or a device"),
    "held on another host": (held_elsewhere, "was started on elsewhere and has left no outcome"),
    "launched on another host": (launched_elsewhere, "process 7 of elsewhere launches in this folder"),
    **{
        f"a link called {name}": (linked(name), f"{name}: is a link, a pipe or a device")
        for name in (
            "plan.yaml",
            "job.json",
            "reserve",
            "outcome.json",
            "rendezvous-0",
            "checkpoints",
            "logs",
            "turns",
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_is_not_the_callers_run_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    if "user" in name and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    make, said = REFUSED[name]
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    (foreign / "precious.txt").write_text("precious")
    folder = make(tmp_path, foreign)
    before = facts(tmp_path)
    with pytest.raises(BadInput, match=said):
        launch(folder)
    after = {key: fact for key, fact in facts(tmp_path).items() if b"launching" not in bytes.fromhex(key)}
    assert after == {key: fact for key, fact in before.items() if b"launching" not in bytes.fromhex(key)}


def test_a_new_folder_an_empty_one_and_a_run_folder_are_taken_and_made_private(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path / "new" / "run", empty, tmp_path / "link" / "below", empty):
        assert mode(launch(folder).root) == 0o700
    assert mode(tmp_path) != 0o700 or mode(tmp_path / "new") != 0o700


def test_what_a_killed_launch_leaves_is_no_obstacle(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "run").make()
    paths.launching.mkdir()
    (paths.launching / "00001").write_text(json.dumps(asdict(RunProcess(socket.gethostname(), 1, "before"))))
    assert launch(paths.root).job.exists()


def test_a_launch_that_cannot_begin_leaves_an_empty_folder_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(Job, "write", lambda job, paths: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        launch(folder)
    assert list(folder.iterdir()) == [] and mode(folder) == 0o755


def test_of_launches_at_once_in_a_fresh_folder_one_starts(tmp_path: Path) -> None:
    """In threads of one process, each of which then holds what it has prepared."""
    folder, begin = tmp_path / "run", threading.Barrier(8)
    started, refused, over = [], [], threading.Event()

    def come(number: int) -> None:
        begin.wait()
        try:
            started.append(launch(folder))
        except BadInput as error:
            refused.append(str(error))
        over.wait(30)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    while len(started) + len(refused) < 8:
        over.wait(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert len(started) == 1 and started[0].job.exists()
    unlike = [said for said in refused if "launches in this folder" not in said and "is running" not in said]
    assert unlike == []


PROGRAM = """
import sys
from pathlib import Path
from planner.errors import BadInput
from planner.plan import load
from runtime.runfolder import Job
from runtime.train import prepare_folder
plan = load("plans/mlp-two-stages.yaml")
print("ready", flush=True)
sys.stdin.readline()
try:
    prepare_folder(plan, Path(sys.argv[1]), Job(steps=1))
    print("started", flush=True)
except BadInput as error:
    print("refused", flush=True)
sys.stdin.readline()
"""


def test_of_two_processes_at_once_one_starts_and_a_third_after_both(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    command = [str(warm_python.python), "-c", PROGRAM, str(tmp_path / "run")]
    both = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        print(file=process.stdin, flush=True)
    said = sorted(process.stdout.readline() for process in both if process.stdout)
    assert said == ["refused\n", "started\n"]
    with pytest.raises(BadInput, match="a run in this folder is running"):
        launch(tmp_path / "run")
    for process in both:
        process.communicate("\n")
    assert launch(tmp_path / "run").job.exists()


def test_a_run_of_another_host_that_has_an_outcome_is_followed(tmp_path: Path) -> None:
    paths = launch(tmp_path / "run")
    paths.holder.write_text(json.dumps(asdict(RunProcess("elsewhere", 7, "then"))))
    tell(paths, Outcome("failed"))
    assert launch(tmp_path / "run") == paths


def test_only_the_supervisor_of_this_very_folder_is_ended(tmp_path: Path) -> None:
    mine, other = launch(tmp_path / "mine"), launch(tmp_path / "other")
    sleeper = "import time; print(flush=True); time.sleep(60)"
    for module, folder, ends in (
        ("runtime.local.main", mine.root, True),
        ("runtime.local.main", other.root, False),
        ("something.else", mine.root, False),
        ("runtime.slurm.supervisor", tmp_path / "mine" / ".." / "mine", True),
    ):
        process = subprocess.Popen(
            [sys.executable, "-c", sleeper, "-m", module, str(folder)],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stdout.readline()
        holder.note_process(mine, process.pid)
        try:
            if ends:
                runfolder.cancel(mine, holder.signal.SIGKILL)
                assert process.wait(30) == -9
            else:
                with pytest.raises(BadInput, match="does not supervise this folder"):
                    runfolder.cancel(mine, holder.signal.SIGKILL)
                assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
        mine.cancelled.unlink(missing_ok=True)


def test_no_process_is_not_a_process_that_runs() -> None:
    for pid in (0, -1, 2**22 + 1):
        assert not RunProcess(socket.gethostname(), pid, "").alive
    assert (
        RunProcess.alive
        and not claim.RunProcess("elsewhere", os.getpid(), runfolder.of(os.getpid()).started).alive
    )


def test_a_page_or_plan_that_is_written_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    from planner.files import write_whole

    for mask, expected in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
        before = os.umask(mask)
        try:
            write_whole(tmp_path / f"{mask}", "text")
        finally:
            os.umask(before)
        assert mode(tmp_path / f"{mask}") == expected
