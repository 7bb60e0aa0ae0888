"""A rank that raises, is killed or stands still ends the run at once, with the first cause named and nobody left."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardwright
from planner.errors import BadInput, BadPlan
from planner.plan import yaml as plan_yaml
from planner.schedule import Kind
from planner.timeline import decode
from runtime import checkpoint as checkpoints
from runtime.launch import Handle, launch_inline, status
from runtime.launch import launch_local as launch
from runtime.local import be_a_rank
from runtime.runfolder import Outcome, Paths, holder, read_cause, steps_of
from runtime.runfolder.result import RunFailed
from runtime.train import job_of, prepare_folder
from tests.runtime.test_equality import HERE, plan_of

ROOT = Path(__file__).parents[3]


def start(folder: Path, how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.runtime.supervised", str(folder), how]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def supervised(folder: Path, how: str) -> Outcome:
    process = start(folder, how)
    try:
        process.wait(20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return Outcome(**json.loads(Paths(folder).outcome.read_text()))


def alive(paths: Paths) -> list[int]:
    """Processes of ranks, and of a loader, that still run; those that ended and wait to be reaped do not count."""
    found, loader = [], paths.root / "loader"
    pids = [*json.loads(paths.pids.read_text()).values()]
    for pid in [*pids, int(loader.read_text())] if loader.exists() else pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


@pytest.mark.parametrize(
    ("how", "state", "cause", "status"),
    [
        ("raise", "failed", "rank 2: ValueError: the second layer is odd", 1),
        ("kill", "failed", "rank 2 was killed by SIGKILL", 128 + 9),
        ("exit", "failed", "rank 2 exited with 7", 7),
        ("leave", "failed", "rank 2: SystemExit: 5", 5),
        ("hang", "hung", "rank 2 made no progress for 0.8 s and is in a call of its own", 1),
        (
            "stop",
            "hung",
            "rank 2 made no progress for 0.8 s and is in a call of its own, stopped by a signal",
            1,
        ),
        (
            "stop before it begins",
            "hung",
            "rank 2 made no progress for 0.8 s and is in a call of its own, stopped by a signal",
            1,
        ),
        (
            "time out on one that stops before it begins",
            "hung",
            "rank 2 was stopped by a signal, and those that waited for it have ended",
            1,
        ),
        (
            "stop while it waits",
            "hung",
            "rank 2 made no progress for 0.8 s and is in a call of its own, stopped by a signal",
            1,
        ),
    ],
)
def test_the_first_cause_is_named_and_nobody_is_left(
    how: str, state: str, cause: str, status: int, tmp_path: Path
) -> None:
    outcome = supervised(tmp_path, how)
    told, _, stacks = outcome.cause.partition("; the stacks of")
    assert (outcome.state, outcome.rank, outcome.status) == (state, 2, status)
    assert told.startswith(cause)
    assert ("in _misbehave" in told) == (how == "hang"), (
        "a process that is stopped cannot say where it stands"
    )
    assert bool(stacks) == (state == "hung" and not how.startswith("time out"))
    assert alive(Paths(tmp_path)) == []


def test_ranks_that_all_return_end_well(tmp_path: Path) -> None:
    outcome = supervised(tmp_path, "well")
    assert outcome.state == "done" and list(outcome.exits) == [0, 0, 0, 0]


def test_a_try_is_not_blamed_for_what_the_one_before_left(tmp_path: Path) -> None:
    before = Paths(tmp_path).make().cause(0)
    cause = {"rank": 0, "time_ns": 0, "secondary": False, "what": "rank 0: ValueError: long ago", "where": []}
    before.write_text(json.dumps(cause))
    assert supervised(tmp_path, "kill").cause == "rank 2 was killed by SIGKILL"


def test_no_two_launches_in_a_folder_share_the_number_of_a_try(tmp_path: Path) -> None:
    """Also where the ranks of the one before ended well, and left no file at which they had met."""
    plan, job = plan_of(HERE + "mlp.py", {}, workers=2, micros=2), job_of
    numbers = [prepare_folder(plan, tmp_path, job(plan, 1, {"restarts": 1}))[1].generation for _ in range(3)]
    assert numbers == [0, 1, 2] and not list(tmp_path.glob("rendezvous-*"))


def test_ranks_die_with_their_supervisor(tmp_path: Path) -> None:
    process, paths = start(tmp_path, "hang"), Paths(tmp_path)
    end = time.monotonic() + 20
    while not paths.pids.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert len(alive(paths)) == 4
    process.kill()
    process.wait()
    while alive(paths) and time.monotonic() < end:
        time.sleep(0.02)
    assert alive(paths) == []


@pytest.mark.parametrize(("code", "status"), [(5, 5), (0, 0), (None, 0), (256, 1), (-1, 255), ("odd", 1)])
def test_a_rank_ends_with_the_status_that_it_says(
    code: int | str | None, status: int, tmp_path: Path
) -> None:
    paths, parent = Paths(tmp_path).make(), os.getpid()

    def leave() -> int:
        raise SystemExit(code)

    pid = os.fork()
    if pid == 0:
        be_a_rank(paths, 0, parent, leave)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status
    assert paths.cause(0).exists() == bool(status)


def test_a_rank_that_was_followed_leaves_no_cause(tmp_path: Path) -> None:
    paths, parent = Paths(tmp_path).make(), os.getpid()

    def leave() -> int:
        raise ValueError("a connection is lost")

    pid = os.fork()
    if pid == 0:
        be_a_rank(paths, 0, parent, leave, lambda: True)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not paths.cause(0).exists(), "it would be taken for that of the rank that came after"


@pytest.mark.usefixtures("warm_starts")
def test_launch_local_ends_with_the_status_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(FRAGILE.replace("_exit(3)", "_exit(5)"))
    (tmp_path / "leaving.fell").touch()  # not while it is captured here
    plan = plan_of(str(tmp_path / "leaving.py"), {}, workers=2, micros=2, micro=1)
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(plan))
    (tmp_path / "leaving.fell").unlink()
    words = ["launch", f"{tmp_path}/plan.yaml", "--local", "--wait", "--steps=99", f"--run={tmp_path}/run"]
    assert shardwright.run(words) == 5


def test_a_cause_keeps_the_traceback(tmp_path: Path) -> None:
    supervised(tmp_path, "raise")
    cause = read_cause(Paths(tmp_path).cause(2))
    assert cause is not None and not cause.secondary
    assert "_misbehave" in "".join(cause.where)


@pytest.mark.usefixtures("warm_starts")
def test_a_launched_run_trains_traces_and_names_the_rank_that_is_killed(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {}, workers=2, micros=2)
    run = launch(plan, tmp_path / "well", steps=2, detach=True)
    run.backend.process.wait(120)
    assert run.paths.trace.exists() and run.paths.metrics.exists()  # also where nobody waits for the result
    result = run.wait(120).check()
    assert sorted(result.losses) == [1, 2]
    assert {decode(code).name for code in result.timeline.code.tolist()} >= {
        Kind.F,
        Kind.B,
        Kind.SYNC,
        Kind.STEP,
    }
    assert set(result.timeline.rank.tolist()) == {0, 1}
    assert result.timeline.wait_ns.max() > 0

    run = launch(plan, tmp_path / "killed", steps=10**6)
    metrics, end = run.paths.rank_metrics(1), time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(json.loads(run.paths.pids.read_text())["1"], signal.SIGKILL)
    result = run.wait(60)
    assert (result.state, result.rank) == ("failed", 1)
    assert result.losses and alive(run.paths) == []
    with pytest.raises(RunFailed, match="rank 1 was killed by SIGKILL"):
        result.check()


FRAGILE = """
import os
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn

drawn = 0

def build():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

def batch(n):
    global drawn
    drawn += 1
    marker = Path(__file__).with_suffix(".fell")
    if drawn > 12 and not marker.exists():
        marker.touch()
        os._exit(3)
    return torch.randn(n, 4), torch.randint(3, (n,))

def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)
"""


FALLING = FRAGILE.replace(
    """    marker = Path(__file__).with_suffix(".fell")
    if drawn > 12 and not marker.exists():
        marker.touch()
""",
    """    marker = Path(__file__).with_suffix(".fell")
    if drawn > 12 and len(marker.read_text()) < 3:
        with marker.open("a") as file:
            file.write("x")
""",
)


@pytest.mark.usefixtures("warm_starts")
def test_a_run_that_fails_goes_on_from_its_last_checkpoint_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(FRAGILE)
    path.with_suffix(".fell").touch()  # not while it is captured here
    plan = plan_of(str(path), {}, workers=2, micros=2, micro=1)
    whole = launch_inline(plan, tmp_path / "inline", steps=6)
    path.with_suffix(".fell").unlink()
    result = launch(plan, tmp_path / "run", steps=6, save_every=1, restarts=1).wait(120).check()
    assert path.with_suffix(".fell").exists()
    assert sorted(result.losses) == [1, 2, 3, 4, 5, 6]
    assert result.losses == whole.losses
    found = status.of(tmp_path / "run")
    assert found.state == "done"
    assert len(found.history) == 1 and " failed: rank " in found.history[0]


@pytest.mark.usefixtures("warm_starts")
def test_a_budget_of_one_is_enough_for_many_failures_with_checkpoints_between(tmp_path: Path) -> None:
    path = tmp_path / "falling.py"
    path.write_text(FALLING)
    fell = path.with_suffix(".fell")
    fell.write_text("xxx")  # not while it is captured here
    plan = plan_of(str(path), {}, workers=2, micros=2, micro=1)
    whole = launch_inline(plan, tmp_path / "inline", steps=24)
    fell.write_text("")
    result = launch(plan, tmp_path / "run", steps=24, save_every=1, restarts=1).wait(120).check()
    assert result.losses == whole.losses
    assert len(status.of(tmp_path / "run").history) >= 2
    left = [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("rendezvous-")]
    assert left == [], "files at which earlier starts met"


LAUNCHER = """
import sys, time
from pathlib import Path
from planner.plan import load
from runtime.launch import launch_local
run = launch_local(load(Path(sys.argv[1])), sys.argv[2], steps=10**6, save_every=1)
print("launched", flush=True)
time.sleep(1000)
"""


def test_a_local_run_ends_with_its_launcher_and_goes_on_when_launched_again(tmp_path: Path) -> None:
    """Seen from another process, with nobody left, and from the last complete checkpoint on."""
    plan = plan_of(HERE + "mlp.py", {}, workers=2, micros=2)
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(plan))
    words = [sys.executable, "-c", LAUNCHER, f"{tmp_path}/plan.yaml", f"{tmp_path}/run"]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT)
    assert launcher.stdout is not None and launcher.stdout.readline() == b"launched\n"
    paths, end = Paths(tmp_path / "run"), time.monotonic() + 180
    while len(steps_of(paths)) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert status.of(paths.root).state == "running"
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    supervisor = holder.find(paths)
    while supervisor is not None and supervisor.alive and time.monotonic() < end:
        time.sleep(0.05)
    found = status.of(paths.root)
    assert (alive(paths), found.state, found.reason) == ([], "ended", "the process that launched it is gone")
    steps = max(checkpoints.latest(paths.checkpoints).facts.step, 1) + 2  # type: ignore[union-attr]
    again = launch(plan, paths.root, steps=steps, save_every=1).wait(180).check()
    assert again.losses == launch_inline(plan, tmp_path / "inline", steps=steps).losses


@pytest.mark.usefixtures("warm_starts")
def test_ctrl_c_ends_a_run_with_a_word_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(plan_of(HERE + "mlp.py", {}, workers=2, micros=2)))

    def interrupted(run: Handle, *_: object, **__: object) -> None:
        end = time.monotonic() + 180
        while len(steps_of(run.paths)) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(Handle, "outcome", interrupted)
    words = ["launch", f"{tmp_path}/plan.yaml", "--local", "--wait", "--steps=1000000", "--save-every=1"]
    assert shardwright.run([*words, f"--run={tmp_path}/run", "--seed=3"]) == 130
    found = status.of(tmp_path / "run")
    assert (found.state, found.reason, alive(Paths(tmp_path / "run"))) == ("interrupted", "by Ctrl-C", [])
    assert found.checkpoint is not None and 1 <= found.checkpoint <= found.step <= found.checkpoint + 2
    last = capsys.readouterr().err.splitlines()
    more = f"--run={tmp_path}/run --local --wait --steps=1000000 --seed=3 --save-every=1"
    how = f"goes on after step {found.checkpoint} with: shardwright launch {tmp_path}/run/plan.yaml {more}"
    assert how in last


def test_a_launch_that_cannot_begin_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(HERE + "mlp.py", {}, workers=2, micros=2)
    other = plan.model_copy(update={"model": plan.model.model_copy(update={"fingerprint": "0" * 16})})
    with pytest.raises(BadPlan, match="another model"):
        launch(other, tmp_path / "runs" / "a", steps=1)

    def full(paths: Paths, ranks: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(paths.reserve))

    monkeypatch.setattr(importlib.import_module("runtime.train.prepare"), "keep_room", full)
    with pytest.raises(OSError, match="No space left"):
        launch(plan, tmp_path / "runs" / "a", steps=1)
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_is_kept_when_it_cannot_go_on(tmp_path: Path) -> None:
    plan = plan_of(HERE + "mlp.py", {}, workers=2, micros=2)
    launch_inline(plan, tmp_path / "a", steps=1)
    with pytest.raises(BadInput, match="seed 7"):
        launch(plan, tmp_path / "a", steps=2, seed=7)
    assert (tmp_path / "a" / "checkpoints" / "step-00000001").is_dir()
