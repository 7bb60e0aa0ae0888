"""What was sent is let go when it has surely arrived: judged by peers that do nothing before they have to."""

from __future__ import annotations

import pytest

from planner.schedule.families import FAMILIES, generate
from planner.schedule.lower import lower
from planner.schedule.program import Message, Program
from runtime.releases import releases_after
from tests.runtime.plans import TIMES
from tests.runtime.test_execute import hops, program_of

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
    program, _, _ = program_of(family, 4, 8)
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
