"""What SLURM says of a job, read: reasons that waiting ends, and reasons that it does not."""

from __future__ import annotations

import shutil

import pytest

from runtime.slurm import commands as clients
from runtime.slurm import state
from runtime.slurm.commands import Said

KILLED = "its supervisor was killed by SIGKILL"


def told(monkeypatch: pytest.MonkeyPatch, **said: str) -> state.JobState:
    """What follows of a job from what programs say of it; others know of nothing."""
    known = {name: Said(0, text, "") for name, text in said.items()}
    monkeypatch.setattr(clients, "call", lambda *command, **_: known.get(command[0], Said(1, "", "no")))
    return state.of(7)


def pending(monkeypatch: pytest.MonkeyPatch, reason: str) -> state.JobState:
    return told(monkeypatch, squeue=row("PENDING", reason, ""))


def row(*words: str) -> str:
    return clients.SEPARATOR.join(words) + "\n"


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "BadConstraints",
        "DependencyNeverSatisfied",
        "InvalidQOS",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMinCpuNotSatisfied",
    ],
)
def test_a_job_that_can_never_start_is_said_to(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pending(monkeypatch, reason)
    assert (found.state, found.reason, found.stuck) == ("queued", f"{reason}: it will never start", True)


@pytest.mark.parametrize(
    "reason",
    [
        "Resources",
        "Priority",
        "BeginTime",
        "ReqNodeNotAvail, UnavailableNodes:n3",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        "PartitionNodeLimit",
        "QOSMaxCpuPerUserLimit",
        "AssocGrpNodeLimit",
        "JobHeldUser",
        "PartitionDown",
        "Licenses",
    ],
)
def test_a_job_that_may_start_yet_is_waited_for(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pending(monkeypatch, reason)
    assert found.state == "queued" and found.reason.startswith(reason) and not found.stuck


def test_a_job_that_is_held_says_who_can_end_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pending(monkeypatch, "JobHeldAdmin").reason == "JobHeldAdmin: until an administrator releases it"


def test_an_array_of_which_one_task_runs_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = row("RUNNING", "None", "n1") + row("PENDING", "JobArrayTaskLimit", "")
    assert told(monkeypatch, squeue=rows).state == "running"


def test_a_supervisor_that_was_killed_is_no_failed_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "JobId=7 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:9 NodeList=n[1-2]"
    assert told(monkeypatch, scontrol=line) == state.JobState("failed", KILLED, "n[1-2]")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("COMPLETED|0:0|n1\n", state.JobState("done", "", "n1")),
        ("FAILED|0:9|n1\n", state.JobState("failed", KILLED, "n1")),
        ("FAILED|5:0|n[1-2]\n", state.JobState("failed", "", "n[1-2]")),
        ("CANCELLED by 0|0:0|None assigned\n", state.JobState("cancelled")),
        ("TIMEOUT|0:0|n1\n", state.JobState("out of time", "", "n1")),
    ],
)
def test_accounting_knows_how_a_job_ended_that_the_controller_has_forgotten(
    row: str, expected: state.JobState, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, sacct=row) == expected


def test_a_cluster_that_does_not_answer_is_not_one_that_has_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    errors = iter(["slurm_load_jobs error: Invalid job id specified", "Unable to contact slurm controller"])
    monkeypatch.setattr(clients, "call", lambda *command, **_: Said(1, "", next(errors)))
    assert [state.word(7), state.word(7)] == ["", state.UNKNOWN]
