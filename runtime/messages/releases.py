"""Works out when a sent message is known to have arrived, so that its memory can go: the same in every run of
a program.

Whoever hears from a peer knows what that peer had done when it spoke, and what it then knew of others. So
each rank has a clock that says how far it knows every rank to be; what a rank sends carries its clock along.
A message has arrived once its receiver is known to have waited for it. Steps follow each other, so what is
not known by the end of one becomes known early in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from planner.program import Instruction, Program
from planner.schedule import Message


class _Done(NamedTuple):
    step: int
    position: int
    instruction: Instruction
    clock: list[int]  # instructions that each rank is known to have done, over both steps


def releases_after(program: Program, worker: int) -> dict[int, list[Message]]:
    """Returns the messages that have surely arrived once an instruction of a worker is done.

    Args: `worker` is a position in the pipeline.
    Returns: messages by the instruction's position; those of the step before only if they are not sent again
        until then.
    """
    size = [len(instructions) for instructions in program.ranks]
    waited = {
        i.message: (rank, at)
        for rank, instructions in enumerate(program.ranks)
        for at, i in enumerate(instructions)
        if i.op == "wait"
    }
    found: dict[int, list[Message]] = {}
    pending: dict[Message, int] = {}  # step of its sending
    for step, position, instruction, clock in _two_steps(program, worker):
        message = instruction.message
        if instruction.op == "send":
            assert message is not None
            pending[message] = step
        elif instruction.op == "wait":
            for sent, when in list(pending.items()):
                peer, at = waited[sent]
                if clock[peer] > when * size[peer] + at:
                    del pending[sent]
                    if step == 1:
                        found.setdefault(position, []).append(sent)
    return found


def _two_steps(program: Program, worker: int) -> Iterator[_Done]:
    """Yields what a worker does and then knows in two steps, in any order that the messages allow."""
    count = len(program.ranks)
    size = [len(instructions) for instructions in program.ranks]
    clocks = [[0] * count for _ in range(count)]
    carried: dict[tuple[int, Message], list[int]] = {}
    moved = True
    while moved:
        moved = False
        for rank, clock in enumerate(clocks):
            while clock[rank] < 2 * size[rank]:
                step, position = divmod(clock[rank], size[rank])
                instruction = program.ranks[rank][position]
                message = instruction.message
                if message is not None and instruction.op == "wait":
                    if (step, message) not in carried:
                        break
                    clock[:] = map(max, clock, carried.pop((step, message)))
                elif message is not None and instruction.op == "send":
                    carried[step, message] = clock.copy()
                clock[rank] += 1
                moved = True
                if rank == worker:
                    yield _Done(step, position, instruction, clock)


def releases_before(program: Program, worker: int) -> dict[int, list[Message]]:
    """Returns messages whose arrival is waited for before later ones are sent, for a program of forwards alone.

    In such a program nobody hears of anything. So a channel holds few messages at a time: at least two, and
    as many as it takes for nobody to wait in a circle.
    Args: `worker` is a position in the pipeline.
    Returns: messages by the position of the send that they must have arrived before.
    """
    most = max((len(each) for each in program.ranks), default=0)
    behind = next(k for k in range(2, most + 3) if _ends(program, _awaited(program, k)))
    return {at: [message] for (rank, at), message in _awaited(program, behind).items() if rank == worker}


def _awaited(program: Program, behind: int) -> dict[tuple[int, int], Message]:
    """Returns, by rank and position of a send, what was sent so many messages before on its channel."""
    channels: dict[tuple[int, int, int, int], list[Message]] = {}
    found = {}
    for rank, instructions in enumerate(program.ranks):
        for at, instruction in enumerate(instructions):
            if (message := instruction.message) is not None and instruction.op == "send":
                own = channels.setdefault((rank, message.pipe, message.sender, message.receiver), [])
                own.append(message)
                if len(own) > behind:
                    found[rank, at] = own[-1 - behind]
    return found


def _ends(program: Program, awaited: Mapping[tuple[int, int], Message]) -> bool:
    """Returns whether every rank comes to its end, if a message arrives no earlier than where it is needed."""
    needed = {
        instruction.message: (rank, at)
        for rank, instructions in enumerate(program.ranks)
        for at, instruction in enumerate(instructions)
        if instruction.op == "wait"
    }
    sent: set[Message | None] = set()
    done = [0] * len(program.ranks)
    moved = True
    while moved:
        moved = False
        for rank, instructions in enumerate(program.ranks):
            while done[rank] < len(instructions):
                instruction = instructions[done[rank]]
                if instruction.op == "wait" and instruction.message not in sent:
                    break
                if (rank, done[rank]) in awaited:
                    receiver, at = needed[awaited[rank, done[rank]]]
                    if done[receiver] < at:
                        break
                if instruction.op == "send":
                    sent.add(instruction.message)
                done[rank] += 1
                moved = True
    return all(at == len(each) for at, each in zip(done, program.ranks, strict=True))
