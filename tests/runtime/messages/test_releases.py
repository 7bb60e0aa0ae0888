"""What was sent is let go when it has surely arrived: judged by peers that do nothing before they have to."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from planner.program import Instruction, Program, lower
from planner.schedule import FAMILIES, Kind, Message, generate
from runtime.messages import releases_after, releases_before
from tests.runtime.execute.test_interpreter import hops, program_of
from tests.runtime.plans import TIMES

Waited = set[tuple[int, Message]]  # step, message


class Lazy:
    """Runs of each rank only what another cannot go on without."""

    def __init__(self, program: Program) -> None:
        self.ranks = program.ranks
        self.done = [0] * len(self.ranks)  # instructions, over all steps
        self.waited: Waited = set()
        self.sender = {i.message: rank for rank, own in enumerate(self.ranks) for i in own if i.op == "send"}
        self.sent: Waited = set()

    def advance(self, rank: int) -> tuple[int, int]:
        """One instruction, and first whatever it waits for; its step and position."""
        step, position = divmod(self.done[rank], len(self.ranks[rank]))
        op, _, message = self.ranks[rank][position]
        if op == "wait":
            assert message is not None
            while (step, message) not in self.sent:
                self.advance(self.sender[message])
            self.waited.add((step, message))
        elif op == "send":
            assert message is not None
            self.sent.add((step, message))
        self.done[rank] += 1
        return step, position


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_message_is_released_only_after_it_was_certainly_taken(family: str) -> None:
    program, _ = program_of(family, 4, 8)
    for worker in range(4):
        assert _released(program, worker) == {i.message for i in program.ranks[worker] if i.op == "send"}, (
            "all are known to have arrived before they are sent again"
        )


def _released(program: Program, worker: int) -> set[Message]:
    found, lazy = releases_after(program, worker), Lazy(program)
    released, sent = set(), dict[Message, int]()  # by the step of its sending
    for _ in range(3 * len(program.ranks[worker])):
        step, position = lazy.advance(worker)
        op, _, message = program.ranks[worker][position]
        if op == "send":
            assert message is not None
            sent[message] = step
        for message in found.get(position, ()):
            if message in sent:
                assert (sent[message], message) in lazy.waited
                released.add(message)
    return released


def test_news_travels_over_others() -> None:
    """Stage 0 sends a skip to stage 2, which never speaks to it."""
    schedule = generate("1f1b", workers=3, micros=4)
    skip = [hop.model_copy(update={"sender": 0, "receiver": 2}) for hop in hops(3)[:1]]
    program = lower(schedule, [*hops(3), *skip], [TIMES] * 3)
    found = {message for messages in releases_after(program, 0).values() for message in messages}
    assert {message.micro for message in found if message.receiver == 2} == {0, 1, 2, 3}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_where_nobody_answers_two_are_under_way_and_nobody_waits_in_a_circle(family: str) -> None:
    schedule = generate(family, workers=4, micros=16)
    orders = tuple(tuple(a for a in order if a.kind is Kind.F) for order in schedule.orders)
    made = [hop for hop in hops(schedule.stages) if hop.direction == "act"]
    forwards = lower(replace(schedule, orders=orders), made, [TIMES] * schedule.stages)
    assert most_under_way(forwards, Random(family)) <= 2


def test_more_are_under_way_where_they_are_needed_later_than_what_is_sent_after_them() -> None:
    first, late = [Message("act", 0, micro, 0, 1) for micro in range(5)], Message("act", 0, 0, 0, 2)
    sends = [*first[:3], late, *first[3:]]
    waits = [late, *first]
    program = Program(
        ranks=(
            tuple(Instruction("send", message=each) for each in sends),
            tuple(Instruction("wait", message=each) for each in waits),
        )
    )
    assert most_under_way(program, Random(0)) == 3


def most_under_way(program: Program, draw: Random) -> int:
    """On one channel, if ranks go on in any order, and a message arrives when its receiver comes to need it."""
    before = [releases_before(program, worker) for worker in range(len(program.ranks))]
    done, most = [0] * len(program.ranks), 0
    sent, needed, gone = set[Message](), set[Message](), set[Message]()
    while unfinished := [rank for rank, own in enumerate(program.ranks) if done[rank] < len(own)]:
        able = []
        for rank in unfinished:
            instruction = program.ranks[rank][done[rank]]
            if instruction.op == "wait" and instruction.message is not None:
                needed.add(instruction.message)
            arrived = instruction.op != "wait" or instruction.message in sent
            if arrived and needed.issuperset(before[rank].get(done[rank], ())):
                able.append(rank)
        assert able, "all wait for each other"
        rank = draw.choice(able)
        gone.update(before[rank].get(done[rank], ()))
        message = program.ranks[rank][done[rank]].message
        if message is not None and program.ranks[rank][done[rank]].op == "send":
            sent.add(message)
            channel = [x for x in sent - gone if x._replace(micro=0) == message._replace(micro=0)]
            most = max(most, len(channel))
        done[rank] += 1
    return most
