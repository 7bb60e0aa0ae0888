"""From what ranks leave behind to the one cause: the first that was at fault, not those that fell with it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from runtime.runfolder import STOPPED, Outcome, Paths
from runtime.slurm import rank_records as record
from runtime.slurm.rank_records import RankRecord

HOSTS = ["n1", "n1", "n2", "n2"]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path).make()


def left(paths: Paths, rank: int, state: str, status: int = 0, **more: float | bool) -> None:
    RankRecord(
        rank=rank,
        generation=1,
        host=HOSTS[rank],
        node=rank // 2,
        pid=7,
        state=state,
        status=status,
        waiting=bool(more.get("waiting")),
        still_s=float(more.get("still_s", 0.0)),
        stopped=bool(more.get("stopped")),
    ).write(paths)


def raised(paths: Paths, rank: int, what: str, time_ns: int, *, secondary: bool) -> None:
    cause = {"rank": rank, "time_ns": time_ns, "secondary": secondary, "what": what, "where": []}
    paths.cause(rank).write_text(json.dumps(cause))


def outcome(paths: Paths, code: int = 1) -> Outcome:
    return record.outcome(paths, HOSTS, 1, code)


def test_all_done_is_done(paths: Paths) -> None:
    for rank in range(4):
        left(paths, rank, "done")
    assert outcome(paths, 0) == Outcome("done", exits=(0, 0, 0, 0))


@pytest.mark.parametrize("code", [0, 128 + signal.SIGTERM])
def test_ranks_that_stopped_with_a_checkpoint_have_not_failed(paths: Paths, code: int) -> None:
    """Nor where the signal of a preemption reached srun after them."""
    for rank in range(4):
        left(paths, rank, "stopped", STOPPED)
    found = outcome(paths, code)
    assert found.state == "stopped"
    assert found.status == STOPPED


def test_an_error_of_ones_own_comes_before_those_that_follow_from_it(paths: Paths) -> None:
    left(paths, 0, "failed", 1)
    raised(paths, 0, "rank 0: RuntimeError: Connection closed by peer", 5, secondary=True)
    left(paths, 1, "ended", 1)
    left(paths, 2, "failed", 7)
    raised(paths, 2, "rank 2: ValueError: odd", 9, secondary=False)
    left(paths, 3, "ended", 1)
    found = outcome(paths)
    assert (found.state, found.rank, found.cause) == ("failed", 2, "rank 2: ValueError: odd (on n2)")
    assert found.status == 7


def test_ranks_that_gave_way_are_not_blamed_nor_those_that_lost_them(paths: Paths) -> None:
    for rank in (0, 2):
        left(paths, rank, "gave way", -signal.SIGTERM)
    for rank in (1, 3):
        left(paths, rank, "failed", 1)
        raised(paths, rank, f"rank {rank}: RuntimeError: Connection reset", 5, secondary=True)
    found = outcome(paths, 128 + signal.SIGTERM)
    assert (found.state, found.rank, found.cause) == ("interrupted", None, record.GAVE_WAY)
    assert record.by_slurm(found, []) == found


def test_a_killed_rank_comes_before_the_errors_of_those_that_lost_it(paths: Paths) -> None:
    left(paths, 0, "failed", 1)
    raised(paths, 0, "rank 0: RuntimeError: Connection reset", 5, secondary=True)
    left(paths, 1, "ended", 1)
    left(paths, 2, "ended", 1)
    left(paths, 3, "failed", -9)
    found = outcome(paths)
    assert found.cause == "rank 3 on n2 was killed by SIGKILL"
    assert found.status == 137


def test_of_ranks_that_stand_still_the_one_that_waits_for_nobody_is_named(paths: Paths) -> None:
    left(paths, 0, "hung", 1, waiting=True, still_s=3.2)
    left(paths, 1, "ended", 1, waiting=True, still_s=3.1)
    left(paths, 2, "hung", 1, waiting=False, still_s=3.0)
    left(paths, 3, "ended", 1, waiting=True, still_s=2.0)
    found = outcome(paths)
    assert (found.state, found.rank) == ("hung", 2)
    assert "made no progress for 3.0 s and is in a call of its own" in found.cause


def test_a_stopped_rank_is_named_before_those_that_stood_still_longer_or_timed_out(paths: Paths) -> None:
    """As where it is stopped before its first beat, and others wait at the place where ranks meet."""
    left(paths, 0, "failed", 1)
    raised(paths, 0, "rank 0: RuntimeError: Timed out waiting 120000ms", 5, secondary=True)
    left(paths, 1, "ended", 1, still_s=130.0)
    left(paths, 2, "ended", 1, still_s=90.0, stopped=True)
    left(paths, 3, "ended", 1, still_s=140.0)
    found = outcome(paths)
    assert (found.state, found.rank) == ("hung", 2)
    assert "rank 2 on n2 made no progress for 90.0 s" in found.cause


def test_where_all_ranks_wait_no_rank_is_to_blame_but_what_is_between_them(paths: Paths) -> None:
    for rank in range(4):
        left(paths, rank, "hung" if rank == 1 else "ended", 1, waiting=True, still_s=3.0)
    assert "waits as all ranks do: messages between n1, n2 do not arrive" in outcome(paths).cause


def test_ranks_that_left_no_word_are_named_with_their_node(paths: Paths) -> None:
    left(paths, 0, "ended", 1)
    left(paths, 1, "ended", 1)
    left(paths, 2, "running")
    found = outcome(paths)
    assert (found.state, found.cause) == ("lost", "ranks 2, 3 on n2 vanished without a word")


def test_a_record_of_an_earlier_try_is_none_of_this_one(paths: Paths) -> None:
    left(paths, 0, "done")
    assert record.read(paths, 0, 1) is not None
    assert record.read(paths, 0, 2) is None
    assert "no rank was started on n1, n2: srun ended with 1" in record.outcome(paths, HOSTS, 2, 1).cause
