"""The contents of each message between two stages, derived from the captured graph, in both directions.

A Value goes straight from its producer to each stage that reads it. Its gradient comes back along the chain
of those stages, last first, each adding its own share, and reaches the producer from the first of them.

The second half works out when a sent message is known to have arrived, so that its memory can go. The answer is
the same in every run of a program. Whoever hears from a peer knows what that peer had done when it spoke, and what it then knew of others. So
each rank has a clock that says how far it knows every rank to be; what a rank sends carries its clock along.
A message has arrived once its receiver is known to have waited for it. Steps follow each other, so what is
not known by the end of one becomes known early in the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from planner.capture import Captured
from planner.errors import BadPlan
from planner.model import ModelGraph, crossings
from planner.plan import Hop, Plan, as_planned
from planner.program import Instruction, Program
from planner.schedule import Message

Names = tuple[str, ...]
Direction = Literal["act", "grad"]


@dataclass(frozen=True)
class Routes:
    """The names of the Values that travel: `act[sender, receiver]` and `grad[sender, receiver]`, in the
    order of the graph."""

    act: dict[tuple[int, int], Names]
    grad: dict[tuple[int, int], Names]

    def names(self, direction: Direction, sender: int, receiver: int) -> Names:
        """Returns the names of what one message carries.

        Args: `direction` is "act" or "grad"; `sender` and `receiver` are numbers of stages.
        """
        return (self.act if direction == "act" else self.grad)[sender, receiver]

    def leaving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        """Returns receiver and names of all messages that a stage sends for a micro-batch, by receiver.

        Args: `direction` is "act" or "grad".
        """
        table = self.act if direction == "act" else self.grad
        return tuple(
            (receiver, names) for (sender, receiver), names in sorted(table.items()) if sender == stage
        )

    def arriving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        """Returns sender and names of all messages that a stage receives for a micro-batch, by sender.

        Args: `direction` is "act" or "grad".
        """
        table = self.act if direction == "act" else self.grad
        return tuple(
            (sender, names) for (sender, receiver), names in sorted(table.items()) if receiver == stage
        )


def routes_of(graph: ModelGraph, stage_of: Sequence[int]) -> Routes:
    """Works out what travels between stages in both directions.

    Args: `stage_of` has the stage of each layer, in the graph's order.
    Returns: routes, without pairs of stages that send each other nothing.
    """
    act: dict[tuple[int, int], list[str]] = {}
    grad: dict[tuple[int, int], list[str]] = {}
    for crossing in crossings(graph, stage_of):
        for target in crossing.targets:
            act.setdefault((crossing.source, target), []).append(crossing.value)
        if graph.value[crossing.value].needs_grad:
            chain = (crossing.source, *crossing.targets)
            for earlier, later in pairwise(chain):
                grad.setdefault((later, earlier), []).append(crossing.value)
    return Routes(
        act={edge: tuple(names) for edge, names in act.items()},
        grad={edge: tuple(names) for edge, names in grad.items()},
    )


def check_hops(routes: Routes, hops: Sequence[Hop]) -> None:
    """Raises BadPlan where a plan's messages are not those of the model: it would wait for ever, or lose a gradient.

    Args: `hops` are the plan's.
    """
    planned: dict[tuple[str, int, int], set[str]]
    planned = {(hop.direction, hop.sender, hop.receiver): set(hop.values) for hop in hops}
    needed: dict[tuple[str, int, int], set[str]]
    needed = {("act", *edge): set(names) for edge, names in routes.act.items()}
    needed |= {("grad", *edge): set(names) for edge, names in routes.grad.items()}
    for direction, sender, receiver in sorted({*planned, *needed}):
        have, want = planned.get((direction, sender, receiver)), needed.get((direction, sender, receiver))
        if have != want:
            raise BadPlan(
                f"hop {direction} {sender}>{receiver} carries {sorted(have or ())}, "
                f"the model needs {sorted(want or ())}: plan the model again"
            )


def in_order_of(plan: Plan, captured: Captured) -> Captured:
    """Returns a captured model with its layers in the order in which the plan's stages name them.

    Args: `plan` may keep the model's own order.
    Raises: BadPlan where the layers are not those of the model.
    """
    return captured.ordered([layer.name for layer in as_planned(captured.graph, plan).layers])


def stages_of_layers(plan: Plan, graph: ModelGraph) -> list[int]:
    """Returns the stage of each layer.

    Args: `graph` has its layers in the plan's order, see `in_order_of`.
    Raises: BadPlan where the plan's stages are not the layers of the model in order.
    """
    planned = [name for stage in plan.stages for name in stage.layers]
    actual = [layer.name for layer in graph.layers]
    if planned != actual:
        at = next((i for i, (a, b) in enumerate(zip(planned, actual, strict=False)) if a != b), len(planned))
        have = planned[at] if at < len(planned) else "nothing"
        want = actual[at] if at < len(actual) else "nothing"
        raise BadPlan(f"the stages have '{have}' where the model has '{want}': plan the model again")
    return [number for number, stage in enumerate(plan.stages) for _ in stage.layers]


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
