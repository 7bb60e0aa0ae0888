from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.program import Instruction, Program, lower
from planner.program import violations as program_violations
from planner.program.check import deadlock
from planner.schedule import generate
from planner.simulate.longest_path import neighbour_hops
from tests.planner.cases import stage_times

SCHEDULE = generate("1f1b", workers=2, micros=2)
PROGRAM = lower(SCHEDULE, neighbour_hops(2), stage_times(2))
Rank = list[Instruction]


def spoiled(rank: int, change: Callable[[Rank], Rank]) -> Program:
    ranks = [list(own) for own in PROGRAM.ranks]
    ranks[rank] = change(ranks[rank])
    return Program(ranks=tuple(tuple(own) for own in ranks))


def without(op: str) -> Callable[[Rank], Rank]:
    def change(rank: Rank) -> Rank:
        first = next(i for i in rank if i.op == op)
        return [i for i in rank if i is not first]

    return change


def swapped(op: str) -> Callable[[Rank], Rank]:
    """The first two of one kind in each other's place."""

    def change(rank: Rank) -> Rank:
        a, b = [k for k, i in enumerate(rank) if i.op == op and i.message and i.message.direction == "act"][
            :2
        ]
        rank[a], rank[b] = rank[b], rank[a]
        return rank

    return change


def first_to_end(op: str) -> Callable[[Rank], Rank]:
    def change(rank: Rank) -> Rank:
        at = next(k for k, i in enumerate(rank) if i.op == op)
        return [*rank[:at], *rank[at + 1 :], rank[at]]

    return change


def last_to_front(op: str) -> Callable[[Rank], Rank]:
    def change(rank: Rank) -> Rank:
        at = max(k for k, i in enumerate(rank) if i.op == op)
        return [rank[at], *rank[:at], *rank[at + 1 :]]

    return change


@pytest.mark.parametrize(
    ("rank", "change", "says"),
    [
        (1, without("post"), "rank 1 posts a receive for message act0>1.0 never"),
        (1, without("wait"), "rank 1 waits for message act0>1.0 never"),
        (0, without("send"), "rank 0 sends message act0>1.0 never"),
        (0, without("compute"), "rank 0 does not compute what worker 0"),
        (0, lambda rank: [*rank, next(i for i in rank if i.op == "send")], "message act0>1.0 2 times"),
        (1, lambda rank: [*rank, next(i for i in PROGRAM.ranks[0] if i.op == "send")], "allowed: never"),
        (1, swapped("post"), "the ends of their channel disagree on the order"),
        (1, first_to_end("post"), "waits for act0>1.0 before it posts"),
        (1, first_to_end("wait"), "needs act0>1.0 before it waits"),
        (0, last_to_front("send"), "sends act0>1.1 before it is made"),
    ],
)
def test_a_spoiled_program_is_found_out(rank: int, change: Callable[[Rank], Rank], says: str) -> None:
    assert program_violations(PROGRAM, SCHEDULE, streams="channel") == []
    found = program_violations(spoiled(rank, change), SCHEDULE, streams="channel")
    assert any(says in str(violation) for violation in found), [str(v) for v in found]


def test_a_program_of_too_few_ranks_is_found_out() -> None:
    assert "1 ranks for 2 workers" in str(program_violations(Program(ranks=PROGRAM.ranks[:1]), SCHEDULE)[0])


def test_a_missing_receive_is_drawn_where_it_is_needed() -> None:
    found = program_violations(spoiled(1, without("post")), SCHEDULE, streams="channel")
    picture = "worker 1: [1F0] 1B0 1F1 1B1 1SYNC 1STEP  <-- here: message act0>1.0"
    assert any(picture in violation.picture(SCHEDULE) for violation in found)


def test_a_deadlock_is_drawn_with_what_each_worker_waits_for() -> None:
    program = lower(SCHEDULE, neighbour_hops(2), stage_times(2), lookahead=99)
    (found,) = deadlock(program, SCHEDULE, streams="pair")
    text = found.picture(SCHEDULE)
    assert "messages share streams by pair" in text
    assert "worker 1: [1F0]" in text
    assert "<-- here: waits for act0>1.0" in text
    assert deadlock(program, SCHEDULE, streams="direction") == []
