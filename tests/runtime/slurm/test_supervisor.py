"""Who is to blame for the end of a job that SLURM has ended, and when its nodes are free."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from runtime.runfolder import STOPPED, Outcome, Paths
from runtime.slurm import commands as clients
from runtime.slurm import rank_records
from runtime.slurm.supervisor import Supervisor
from runtime.slurm.task_layout import by_node
from tests.planner.plan_examples import plan as example

ENDED = "ended by SLURM: cancelled, preempted, requeued, or out of time"


@pytest.mark.parametrize(
    ("outcome", "gone", "cause"),
    [
        (Outcome("failed", 1, "rank 1 on n2 was killed by SIGTERM", (1, -15)), [], ENDED),
        (Outcome("lost", 0, "ranks 0, 1 vanished", (0, 0)), [], ENDED),
        (Outcome("failed", None, "no rank was started", (0, 0)), [], ENDED),
        (
            Outcome("failed", 0, "rank 0 on n1 was killed by SIGTERM", (-15, 1)),
            ["n2 (down: burnt)"],
            "lost n2 (down: burnt)",
        ),
    ],
)
def test_slurm_and_not_the_rank_that_it_ended_first(
    outcome: Outcome, gone: list[str], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "unwell", lambda nodes: gone)
    assert rank_records.by_slurm(outcome, ["n1", "n2"]) == Outcome(
        "interrupted", cause=cause, exits=outcome.exits
    )


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("done", exits=(0, 0)),
        Outcome("stopped", cause="told to stop, with a checkpoint", exits=(STOPPED, STOPPED)),
        Outcome("failed", 1, "rank 1: ValueError: odd (on n2)", (-15, 1)),
        Outcome("failed", 0, "rank 0 on n1 was killed by SIGKILL", (-9, 1)),
        Outcome("hung", 0, "rank 0 on n1 made no progress", (1, 1)),
    ],
)
def test_what_a_rank_did_by_itself_stays_its_own(outcome: Outcome) -> None:
    assert rank_records.by_slurm(outcome, ["n1", "n2"]) == outcome


def test_a_job_that_is_queued_again_leaves_its_nodes_as_soon_as_slurm_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else others wait until SLURM kills it, which is half a minute where nobody has set KillWait."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    plan = example()
    names = [f"n{node}" for node in range(len(by_node(plan.places)))]
    monkeypatch.setattr(clients, "hostnames", lambda nodes: names)
    environment = {"SLURM_JOB_NODELIST": ",".join(names), "SLURM_JOB_ID": "7"}
    ours = Supervisor(Paths(tmp_path), plan, [], 1, 0, False, environment, lambda: True)

    def queued(job: str) -> bool:
        ours.told.add(signal.SIGTERM)
        return True

    monkeypatch.setattr(clients, "requeue", queued)
    assert ours._requeue(Outcome("stopped")) == STOPPED
    assert slept == []


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ("StartTime=2026-11-24T03:00:00 PreemptEligibleTime=2026-11-24T03:00:00 PreemptTime=None", False),
        ("StartTime=2026-11-24T03:00:00 PreemptTime=2026-11-24T03:00:00", True),
        ("StartTime=2026-11-24T03:00:00 PreemptTime=2026-11-24T03:10:00", True),
        ("StartTime=2026-11-24T03:00:00 PreemptTime=2026-11-24T02:50:00", False),
        ("", False),
    ],
)
def test_a_job_gives_way_that_was_told_so_since_it_began(
    told: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was told before it was queued again is over."""
    monkeypatch.setattr(clients, "call", lambda *words: clients.Said(0, f"JobId=7 {told} Command=x", ""))
    assert clients.is_preempted({"SLURM_JOB_ID": "7"}) is answer


def test_where_slurm_does_not_answer_nobody_is_known_to_need_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its controller may be away for a minute, which is no reason to end a run."""

    def silent(*words: str) -> clients.Said:
        raise clients.SlurmError(f"{words[0]} did not answer")

    monkeypatch.setattr(clients, "call", silent)
    assert clients.is_preempted({"SLURM_JOB_ID": "7"}) is False
    clients.tell_steps({"SLURM_JOB_ID": "7"})
