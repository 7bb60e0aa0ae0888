"""More than one job for a run folder, and jobs that SLURM or somebody ends: who trains, and what is said of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from planner.errors import BadInput
from runtime.launch import Handle, status
from runtime.runfolder import outcome
from runtime.slurm import Queued
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PATIENCE_S, Gate, launch, paced_plan, shardwright, until, until_step
from tests.slurm.warm import Warm

STEPS = 8


def begun(warm: Warm, folder: Path, steps: int = 6, **options: object) -> Handle:
    """Standing before the gate, with a checkpoint behind it."""
    run = launch(warm, paced_plan(), folder / "run", steps=STEPS, save_every=2, options=options)
    until_step(run, steps)
    return run


def by_hand(cluster: Cluster, run: Handle) -> int:
    return int(cluster.run("sbatch", "--parsable", str(run.paths.script)))


def story(run: Handle) -> list[tuple[str, str]]:
    return [(attempt.state, attempt.cause) for attempt in outcome.attempts(run.paths)]


def supervisor(run: Handle) -> int:
    """As this machine numbers it."""
    words = f"runtime.slurm.supervisor\0{run.paths.root}".encode()
    found = [path for path in Path("/proc").glob("[0-9]*") if words in _command(path)]
    return int(found[0].name)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_second_job_for_a_folder_is_refused_and_changes_nothing(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path
) -> None:
    run = begun(warm, tmp_path)
    second = by_hand(cluster, run)
    log = run.paths.slurm_log(second)
    until(lambda: log.exists() and "trains in this folder" in log.read_text(), "it is refused", 60)
    assert f"job {run.job} trains" in log.read_text()
    until(lambda: str(second) not in cluster.run("squeue", "-h", "-o", "%A"), "it has ended", 20)
    seen = status.of(run.paths.root)
    gate.open()
    assert (seen.state, seen.job) == ("running", run.job)
    assert sorted(run.wait(PATIENCE_S).check().losses) == list(range(1, STEPS + 1))
    assert story(run) == [("done", "")]


def test_a_killed_supervisor_is_named_and_a_job_by_hand_is_the_run_from_then_on(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PACED_GATE_AT", str(2 * paced_plan().batch.samples)
    )  # of a process: the second stands too
    run = begun(warm, tmp_path, 2, requeues=0)
    os.kill(supervisor(run), signal.SIGKILL)
    until(lambda: run.state == "failed", "SLURM has seen it", 60)
    assert status.of(run.paths.root).reason == "its supervisor was killed by SIGKILL"
    second = by_hand(cluster, run)

    def known() -> bool:
        queued = Queued.read(run.paths)
        return queued is not None and queued.job == second

    until(known, "the run knows its job", 60)
    until(lambda: story(run)[-1] == ("", ""), "ranks are started", 60)
    assert shardwright("cancel", str(run.paths.root))
    until(lambda: cluster.run("squeue", "-h") == "", "the second job is cancelled", 60)
    assert run.state == "cancelled"
    with pytest.raises(BadInput, match="does not run"):
        status.cancel(run.paths.root)
    assert story(run)[0][0] == "interrupted" and "killed" in story(run)[0][1]


def test_a_job_whose_supervisor_was_killed_goes_on_by_itself_and_says_so(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path
) -> None:
    run = begun(warm, tmp_path)
    os.kill(supervisor(run), signal.SIGKILL)
    until(lambda: run.state == "queued", "it waits again", 60)
    gate.open()
    assert sorted(run.wait(PATIENCE_S).check().losses) == list(range(1, STEPS + 1))
    (first, cause), last = story(run)
    assert (first, last) == ("interrupted", ("done", ""))
    assert cause == "the supervisor of the job was killed, by hand or for its memory"


def test_a_job_that_is_queued_again_by_hand_blames_no_rank(
    cluster: Cluster, gate: Gate, warm: Warm, tmp_path: Path
) -> None:
    run = begun(warm, tmp_path)
    cluster.run("scontrol", "requeue", str(run.job))
    until(lambda: run.state == "queued", "it waits again", 60)
    gate.open()
    run.wait(PATIENCE_S).check()
    (first, cause), last = story(run)
    assert (first, last) == ("interrupted", ("done", ""))
    assert cause.startswith("ended ") and "SIGTERM" not in cause


def test_to_wait_for_a_job_that_will_never_start_ends_with_the_reason(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    bad = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=false")
    run = launch(warm, paced_plan(), tmp_path / "run", options={"dependency": f"afterok:{bad}"})
    found = run.outcome(PATIENCE_S)
    assert (found.state, found.status) == ("failed", 1)
    assert found.cause == f"DependencyNeverSatisfied: it will never start; job {run.job} is still queued"
    assert run.state == "queued"
    with pytest.raises(TimeoutError):  # held is not for ever
        held = launch(warm, paced_plan(), tmp_path / "held", options={"sbatch": {"hold": ""}})
        held.outcome(3)  # SLURM is asked twice


def test_a_signal_that_comes_while_ranks_start_is_kept_until_they_listen(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    run = launch(warm, paced_plan(), tmp_path / "run", steps=STEPS, save_every=2)
    until(lambda: story(run) == [("", "")], "ranks are started")
    cluster.run("scancel", "--batch", "--signal=USR1", str(run.job))
    run.wait(PATIENCE_S).check()
    assert [state for state, _ in story(run)] == ["stopped", "done"]
