"""The interpreter on one worker of a program, with stages and messages that only write down what happens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from planner.plan import Hop
from planner.program import Program, lower
from planner.schedule import FAMILIES, Message, generate
from planner.timeline import decode
from runtime.execute import Interpreter, Tracer
from runtime.execute.tracer import MOST_ROWS
from runtime.rank.sleeping import routes_of_hops
from tests.runtime.plans import TIMES


def hops(stages: int) -> list[Hop]:
    pairs = [("act", s, s + 1) for s in range(stages - 1)] + [("grad", s + 1, s) for s in range(stages - 1)]
    return [Hop(direction=d, sender=a, receiver=b, values=("x",), bytes=8, ns=1000) for d, a, b in pairs]  # type: ignore[arg-type]


def program_of(family: str, workers: int, micros: int) -> tuple[Program, list[Hop]]:
    schedule = generate(family, workers=workers, micros=micros)
    made = hops(schedule.stages)
    return lower(schedule, made, [TIMES] * schedule.stages), made


class Loop:
    """A carrier without a wire, and a pulse: messages that nobody here receives go to a list."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.beats = self.waits = 0

    def post(self, message: Message) -> None: ...

    def wait(self, message: Message) -> dict[str, Tensor]:  # of the carrier
        return {f"{message.direction} {message.sender}>{message.receiver}": torch.zeros(1)}

    def send(self, message: Message, tensors: Mapping[str, Tensor]) -> None:
        self.sent.append(message)

    def release(self, message: Message) -> None: ...

    def beat(self, waiting: bool) -> None:
        self.beats += 1
        self.waits += waiting


class Updates:
    """Writes down in which order it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def launch(self, pipe: int, stage: int) -> None:
        self.asked.append(("launch", pipe, stage))

    def wait(self, pipe: int, stage: int) -> None:
        self.asked.append(("wait", pipe, stage))

    def step(self, pipe: int, stage: int) -> None:
        assert self.asked[-1] == ("wait", pipe, stage)
        self.asked.append(("step", pipe, stage))


class Noted:
    def __init__(self, number: int, stages: int) -> None:
        self.number, self.stages = number, stages

    def forward(self, micro: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert len(inputs) == (self.number > 0)
        return {f"act {self.number}>{self.number + 1}": torch.zeros(1)}

    def backward(self, micro: int, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert len(grads) == (self.number < self.stages - 1)
        return {f"grad {self.number}>{self.number - 1}": torch.zeros(1)}

    input_half = backward

    def weight_half(self, micro: int) -> None: ...
    def recompute(self, micro: int) -> None: ...


def interpreter_of(
    program: Program,
    worker: int,
    held: list[tuple[int, int]],
    made: list[Hop],
    loop: Loop,
    updates: Updates,
    tracer: Tracer,
) -> Interpreter:
    """One of a worker whose stages only note what they are asked."""
    stages = 1 + max(hop.receiver for hop in made)
    return Interpreter(
        program,
        worker,
        stages={node: Noted(node[1], stages) for node in held},
        routes=routes_of_hops(made),
        carrier=loop,
        updates=updates,
        feed=lambda stage, micro: {},
        pulse=loop,
        tracer=tracer,
    )


class Ticks:
    """Marks of a device that takes a microsecond from one to the next, and three more where it waits for others."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.now, self.seen, self.made = loop, 0, 0, list[int]()

    def mark(self) -> int:
        self.now += 1000 + 3000 * (self.loop.waits - self.seen)
        self.seen = self.loop.waits
        self.made.append(self.now)
        return len(self.made) - 1

    def times(self) -> list[int]:
        found, self.made = self.made, []
        return found


def test_on_a_gpu_an_action_takes_what_the_device_says_and_waits_where_it_stood_idle_for_a_message() -> None:
    program, made = program_of("1f1b", 4, 8)
    loop, tracer, updates = Loop(), Tracer(1), Updates()
    tracer.marks = Ticks(loop)  # type: ignore[assignment]
    interpreter = interpreter_of(program, 1, [(0, 1)], made, loop, updates, tracer)
    for step in (1, 2):
        interpreter.run(step)
    first = [row for row in tracer.rows if row[0] == 1]
    assert [str(decode(row[2])) for row in first] == [
        str(a) for a in generate("1f1b", workers=4, micros=8).orders[1]
    ]
    assert {end - start for _, _, _, start, end, _ in tracer.rows} == {1000}
    gaps = [later[3] - row[4] for row, later in pairwise(first)]
    waited = [row[5] for row in first[1:]]
    assert any(waited) and all(wait in (0, gap) for wait, gap in zip(waited, gaps, strict=True))
    assert all(wait for wait, gap in zip(waited, gaps, strict=True) if gap > 1000)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_action_runs_in_order_with_its_messages_and_is_traced(family: str) -> None:
    program, made = program_of(family, 4, 8)
    schedule = generate(family, workers=4, micros=8)
    for worker in range(4):
        loop, tracer, updates = Loop(), Tracer(worker), Updates()
        held = [(p, s) for p, row in enumerate(schedule.place) for s, w in enumerate(row) if w == worker]
        interpreter = interpreter_of(program, worker, held, made, loop, updates, tracer)
        interpreter.run(3)
        assert [str(decode(row[2])) for row in tracer.rows] == [str(a) for a in schedule.orders[worker]]
        assert {row[0] for row in tracer.rows} == {3} and {row[1] for row in tracer.rows} == {worker}
        assert loop.sent == [i.message for i in program.ranks[worker] if i.op == "send"]
        assert {what for what, *_ in updates.asked} == {"launch", "wait", "step"}
        assert loop.beats >= len(tracer.rows)


def test_a_long_run_keeps_the_trace_of_its_latest_steps_whole() -> None:
    tracer = Tracer(0)
    for step in range(3 * MOST_ROWS // 1000):
        tracer.trim()
        for code in range(1000):
            tracer.add(step, code, 0, 1)
    assert len(tracer.rows) <= MOST_ROWS + 1000
    assert tracer.rows[-1][0] == 3 * MOST_ROWS // 1000 - 1
    assert [row[2] for row in tracer.rows[:1000]] == list(range(1000))
