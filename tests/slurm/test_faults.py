"""What happens to jobs: each fault is named, costs the steps since the last checkpoint, and changes no loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from runtime import checkpoint as checkpoints
from runtime.checkpoint import integrity as soundness
from runtime.launch import Handle, status
from runtime.runfolder import STOPPED, Paths, outcome, steps_of
from runtime.slurm import SlurmBackend, state
from runtime.slurm.commands import tell_steps
from runtime.slurm.rank_records import GAVE_WAY
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import (
    PATIENCE_S,
    Gate,
    hurt,
    launch,
    paced_plan,
    shardwright,
    task,
    until,
    until_step,
    until_stopping,
)
from tests.slurm.warm import Warm

STEPS = 8


@pytest.fixture(scope="module")
def undisturbed(up: Cluster, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    run = launch(
        warm, paced_plan(), tmp_path_factory.mktemp("undisturbed") / "run", steps=STEPS, save_every=2
    )
    return run.wait(PATIENCE_S).check().losses


started: list[Handle] = []


@pytest.fixture(autouse=True)
def _nobody_is_left() -> Iterator[None]:
    """Of any run, whatever became of it."""
    started.clear()
    yield
    for run in started:
        until(lambda run=run: not pids(run), "the last process of the run", 30)  # type: ignore[misc]


def start(warm: Warm, folder: Path, plan: Plan | None = None, **settings: object) -> Handle:
    run = launch(warm, plan or paced_plan(), folder / "run", steps=STEPS, save_every=2, **settings)  # type: ignore[arg-type]
    started.append(run)
    return run


def samples_trained_on(run: Handle) -> int:
    """By the last checkpoint: none is lost, none counted twice."""
    found = checkpoints.latest(run.paths.checkpoints)
    assert found is not None
    return found.facts.sample


def story(run: Handle) -> list[tuple[str, str]]:
    return [(attempt.state, attempt.cause) for attempt in outcome.attempts(run.paths)]


def pids(run: Handle) -> list[int]:
    """Processes of this machine that work for the run."""
    words = str(run.paths.root).encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_rank_is_named_and_costs_the_steps_since_the_last_checkpoint(
    seed: int, cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    draw = Random(seed)
    rank, step = draw.randrange(2), draw.randrange(1, STEPS - 1)
    run = start(warm, tmp_path)
    until_step(run, step)
    time.sleep(draw.random() * 0.1)  # in any of the actions of the step that follows
    hurt(cluster, run, rank, signal.SIGKILL)
    gate.open()
    host = task(run.paths, rank).host
    done = run.wait(PATIENCE_S).check()
    assert done.losses == undisturbed
    assert story(run) == [("failed", f"rank {rank} on {host} was killed by SIGKILL"), ("done", "")]
    begun = run.paths.rank_metrics(rank).read_text().splitlines()
    assert len(begun) <= STEPS + 2 + 1  # of a save every second step
    assert samples_trained_on(run) == STEPS * paced_plan().batch.samples


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_among_those_that_wait_for_it(
    rank: int, cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    """Also the last rank, which was itself waiting for the first when it was stopped."""
    run = start(warm, tmp_path, deadline_s=6.0)
    until_step(run, 3)
    hurt(cluster, run, rank, signal.SIGSTOP)
    gate.open()
    done = run.wait(PATIENCE_S).check()
    assert done.losses == undisturbed
    (state, cause), after = story(run)
    assert state == "hung" and cause.startswith(f"rank {rank} on ") and "made no progress" in cause
    assert "stopped by a signal" in cause
    assert "most recent call first" in run.logs(1 - rank), "who waits says where"
    assert after == ("done", "")


@pytest.mark.usefixtures("warm_starts")
def test_a_rank_that_exits_5_ends_the_launch_with_5(cluster: Cluster, warm: Warm, tmp_path: Path) -> None:
    """From the command line, from another process than this one."""
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(paced_plan(leaves=0)))
    (tmp_path / "site.yaml").write_text(f"version: 1\npython: {warm.python}\n")
    command = [
        "-m",
        "shardwright",
        "launch",
        f"{tmp_path}/plan.yaml",
        "--slurm",
        "--wait",
        "--device=cpu",
        "--steps=20",
    ]
    more = [f"--site={tmp_path}/site.yaml", f"--run={tmp_path}/run"]
    done = subprocess.run([sys.executable, *command, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "failed: rank 0: SystemExit: 5" in done.stdout


def test_a_signal_before_the_limit_stops_all_ranks_after_one_step_and_the_job_goes_on(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    run = start(warm, tmp_path)
    until_step(run, 3)
    cluster.run("scancel", "--batch", "--signal=USR1", str(run.job))
    until_stopping(run)
    gate.open()
    done = run.wait(PATIENCE_S).check()
    assert done.losses == undisturbed
    assert [state for state, _ in story(run)] == ["stopped", "done"]
    assert [attempt.requeues for attempt in outcome.attempts(run.paths)] == [0, 1]
    steps = [len(run.paths.rank_metrics(rank).read_text().splitlines()) for rank in range(2)]
    assert steps == [STEPS, STEPS]  # none is done twice


def test_a_job_is_queued_again_as_often_as_was_said(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path
) -> None:
    run = start(warm, tmp_path, options={"requeues": 0})
    until_step(run, 2)
    cluster.run("scancel", "--batch", "--signal=USR1", str(run.job))
    until_stopping(run)
    gate.open()
    outcome = run.outcome(PATIENCE_S)
    assert outcome.state == "stopped"
    assert outcome.status == STOPPED


def test_jobs_of_an_array_go_on_from_each_other(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    run = start(warm, tmp_path, options={"requeues": 0, "sbatch": {"array": "1-2%1"}})
    until_step(run, 3)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{run.job}_1")
    until_stopping(run)
    gate.open()
    until(lambda: [state for state, _ in story(run)] == ["stopped", "done"], "the second job", PATIENCE_S)
    assert {row["step"]: row["loss"] for row in run.metrics()} == undisturbed


def test_a_cancelled_run_ends_for_good(cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path) -> None:
    run = start(warm, tmp_path)
    until_step(run, 2)
    status.cancel(run.paths.root)
    gate.open()
    until(lambda: run.state == "cancelled", "the run is cancelled", 30)
    until(lambda: cluster.run("squeue", "-h") == "", "SLURM is done with it", 20)


def test_a_job_ended_by_scancel_is_cancelled_for_good_and_can_be_resumed(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    """By SLURM's own command, of which the run folder knows nothing."""
    run = start(warm, tmp_path)
    until_step(run, 3)
    cluster.run("scancel", str(run.job))
    gate.open()
    assert run.outcome(PATIENCE_S).state == "cancelled"
    assert run.state == "cancelled" and len(story(run)) == 1
    again = start(warm, tmp_path)
    assert again.wait(PATIENCE_S).check().losses == undisturbed
    assert samples_trained_on(again) == STEPS * paced_plan().batch.samples
    begun = run.paths.rank_metrics(0).read_text().splitlines()
    assert len(begun) <= STEPS + 2  # of a save every second step


@pytest.mark.usefixtures("warm_starts")
def test_a_launcher_that_is_killed_changes_nothing_and_another_shell_sees_the_run(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    (tmp_path / "plan.yaml").write_text(plan_yaml.dump(paced_plan()))
    (tmp_path / "site.yaml").write_text(f"version: 1\npython: {warm.python}\n")
    words = [
        f"{tmp_path}/plan.yaml",
        "--slurm",
        "--wait",
        "--device=cpu",
        f"--steps={STEPS}",
        "--save-every=2",
    ]
    command = [sys.executable, "-m", "shardwright", "launch", *words]
    launcher = subprocess.Popen(
        [*command, f"--site={tmp_path}/site.yaml", f"--run={tmp_path}/run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    paths = Paths(tmp_path / "run")
    until(lambda: max(steps_of(paths), default=0) >= 2, "step 2")
    launcher.kill()
    launcher.wait()
    queued = state.Queued.read(paths)
    assert queued is not None
    run = Handle(paths, 2, SlurmBackend(paths, queued.job))
    started.append(run)
    shown = json.loads(shardwright("status", str(paths.root), "--json"))
    gate.open()
    assert (shown["state"], shown["job"]) == ("running", run.job)
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert json.loads(shardwright("status", str(paths.root), "--json"))["state"] == "done"


def test_a_dead_node_is_named_and_the_job_goes_on_elsewhere(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    run = start(warm, tmp_path)
    until_step(run, 3)
    node = int(task(run.paths, 1).host.removeprefix("n"))
    cluster.kill_node(node)
    gate.open()
    try:
        done = run.wait(PATIENCE_S).check()
    finally:
        cluster.start_node(node)
        cluster.await_nodes()
    assert done.losses == undisturbed
    assert any(f"n{node}" in cause for _, cause in story(run)), story(run)
    assert story(run)[-1] == ("done", "")
    assert samples_trained_on(run) == STEPS * paced_plan().batch.samples


def test_a_preempted_job_leaves_a_checkpoint_and_goes_on(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    options = {"partition": "spot", "sbatch": {"exclusive": ""}}
    run = start(warm, tmp_path, paced_plan(), options=options)
    until_step(run, 3)
    urgent = cluster.run(
        "sbatch", "--parsable", "-p", "urgent", "-N12", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
    )
    until_stopping(run)
    gate.open()
    done = run.wait(PATIENCE_S).check()
    assert done.losses == undisturbed
    assert story(run)[-1] == ("done", "")
    assert len(story(run)) > 1
    assert urgent


def test_a_job_that_gives_way_at_once_does_not_wait_for_its_step_and_is_preempted_as_often_as_others_need(
    cluster: Cluster,
    gate: Gate,
    warm: Warm,
    undisturbed: dict[int, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its step waits at a gate that stays shut, so that nobody could have its nodes before that step ends."""
    monkeypatch.setenv("PACED_GATE_AGAIN", "0")
    options = {"partition": "spot", "sbatch": {"exclusive": ""}, "requeues": 1}
    run = start(warm, tmp_path, paced_plan(), options=options, gives_way="at once")
    until_step(run, 3)
    for times in (1, 2, 3):
        urgent = cluster.run(
            "sbatch",
            "--parsable",
            "-p",
            "urgent",
            "-N12",
            "--exclusive",
            "--output=/dev/null",
            "--wrap=sleep 1",
        )
        waiting = ["squeue", "-h", "-t", "PENDING", "-j", urgent, "-o", "%i"]
        until(lambda waiting=waiting: not cluster.run(*waiting), "nodes long before the grace time is over")  # type: ignore[misc]
        until(lambda times=times: len(story(run)) > times and pids(run), "its ranks, again")  # type: ignore[misc]
    gate.open()
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert [state for state, _ in story(run)[:-1]] == ["interrupted"] * 3
    assert ("interrupted", GAVE_WAY) in story(run)
    assert story(run)[-1] == ("done", "")


def test_steps_that_are_told_again_what_slurm_told_them_give_way_and_their_job_stays(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    """SLURM tells a step once that others need its nodes, and ranks that are only being started do not hear it."""
    run = start(warm, tmp_path, paced_plan(), gives_way="at once")
    until_step(run, 3)
    tell_steps({"SLURM_JOB_ID": str(run.job)})
    until(lambda: len(story(run)) > 1, "its ranks, again", run=run)
    gate.open()
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert story(run) == [("interrupted", GAVE_WAY), ("done", "")]


def test_a_job_that_is_preempted_before_its_ranks_begin_goes_on(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    """SLURM tells the steps of a job to end, and this one has none yet."""
    run = start(warm, tmp_path, paced_plan(), options={"partition": "spot", "sbatch": {"exclusive": ""}})
    until(lambda: cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%i"), "the job runs")
    cluster.run("sbatch", "-p", "urgent", "-N12", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    gate.open()
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert story(run)[-1] == ("done", "")


def test_a_controller_that_is_away_for_a_while_changes_nothing(
    cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], tmp_path: Path
) -> None:
    run = start(warm, tmp_path)
    until_step(run, 2)
    cluster.stop_controller()
    until_step(run, 5)
    cluster.start_controller()
    gate.open()
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert story(run) == [("done", "")]


def truncate(content: bytes) -> bytes:
    return content[:-7]


def flip_a_bit(content: bytes) -> bytes:
    return content[:-7] + bytes([content[-7] ^ 16]) + content[-6:]


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit])
def test_a_spoiled_checkpoint_is_named_and_the_one_before_is_used(
    spoil: Callable[[bytes], bytes],
    cluster: Cluster,
    gate: Gate,
    warm: Warm,
    undisturbed: dict[int, float],
    tmp_path: Path,
) -> None:
    run = start(warm, tmp_path)
    until_step(run, 5)
    hurt(cluster, run, 0, signal.SIGSTOP)
    newest = soundness.complete(run.paths.checkpoints)[-1]
    part = newest / "part-00000.safetensors"
    part.write_bytes(spoil(part.read_bytes()))
    hurt(cluster, run, 0, signal.SIGKILL)
    gate.open()
    assert run.wait(PATIENCE_S).check().losses == undisturbed
    assert f"checkpoint {newest.name} is spoiled" in run.logs()


def fill(disk: Path, left_bytes: int) -> Path:
    """To the last byte, whatever is being written there meanwhile; then so many are given back."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(file.tell() - left_bytes, 0))
    return filler


@pytest.mark.parametrize("left_bytes", [0, 64 * 1024])  # room for nothing, or for a part of the weights
def test_a_full_disk_is_named_and_after_making_room_the_run_goes_on(
    left_bytes: int, cluster: Cluster, gate: Gate, warm: Warm, undisturbed: dict[int, float], small_disk: Path
) -> None:
    run = start(warm, small_disk)
    until_step(run, 2)
    filler = fill(small_disk, left_bytes)
    gate.open()
    outcome = run.outcome(PATIENCE_S)
    assert outcome.state == "failed"
    assert "No space left on device" in outcome.cause and str(small_disk) in outcome.cause
    assert "bytes" in outcome.cause and "make room" in outcome.cause
    assert story(run) == [("failed", outcome.cause)]
    until(lambda: state.of(run.job).state == "failed", "SLURM knows", 20)
    filler.unlink()
    again = start(warm, small_disk)
    assert again.wait(PATIENCE_S).check().losses == undisturbed
