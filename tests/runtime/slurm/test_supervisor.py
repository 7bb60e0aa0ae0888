"""Who is to blame for the end of a job that SLURM has ended."""

from __future__ import annotations

import pytest

from runtime.runfolder import STOPPED, Outcome
from runtime.slurm import commands as clients
from runtime.slurm import rank_records

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
