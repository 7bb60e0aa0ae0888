"""The interpreter runs one rank's part of a Program: a flat list of calls, done by one loop a step.

    interpreter = Interpreter(program, worker, stages={(0, 0): stage}, routes=routes, carrier=transport, ...)
    interpreter.run(step=0)  # every action of the worker once, in the program's order

Everything that can be known beforehand is worked out when the list is built: which call, which messages it
takes and leaves, and its code in the trace. The list also says after which wait a message sent earlier is
known to have arrived, so that its memory can go. Messages between stages of the same worker are not in a
Program; they pass through `mail` like all.

Terms: an action is what a schedule lists (F, B, W, ...); an instruction is an action or a part of a message
(post, wait, send); a call does an instruction. The protocols say what is asked of stages, real or asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from planner.errors import BadInput, ShardwrightError
from planner.plan import Hop, Plan, schedule_of
from planner.program import Instruction, Layout, Program, lower
from planner.schedule import Action, Kind, Message
from planner.timeline import encode
from planner.trace import CLOCK_MARK
from runtime.execute.tracer import SILENT, WAITS, ActionCall, Tracer, clock_ns
from runtime.messages import Direction, Names, Routes, releases_after, releases_before
from runtime.world import World

Node = tuple[int, int]  # pipe, stage
T = TypeVar("T")
MARKS = 5  # of the clock
Tensors = Mapping[str, Tensor]


class Carrier(Protocol):
    """The transport of messages, as the interpreter uses it."""

    def post(self, message: Message) -> None: ...
    def wait(self, message: Message) -> dict[str, Tensor]: ...
    def send(self, message: Message, tensors: Tensors) -> None: ...
    def release(self, message: Message) -> None: ...
    def drain(self) -> None: ...


class Updates(Protocol):
    """Gradient sums and updates; SYNC launches, STEP first waits and then updates."""

    def launch(self, pipe: int, stage: int) -> None: ...
    def wait(self, pipe: int, stage: int) -> None: ...
    def step(self, pipe: int, stage: int) -> None: ...


class Pulse(Protocol):
    """Tells the supervisor that this rank moves, and whether it is waiting for another."""

    def beat(self, waiting: bool) -> None: ...


class Stage(Protocol):
    """One stage of one pipe on one rank. Tensors go by the names of their Values."""

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        """Runs the forward of a micro-batch, and keeps what its backward needs under `micro`.

        Returns: outputs without a graph.
        """

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        """Runs the whole backward of a micro-batch, and returns the gradients of its inputs.

        Args: `grads` are those of outputs, and of inputs that later stages read too.
        """

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]: ...

    def weight_half(self, micro: int) -> None: ...

    def recompute(self, micro: int) -> None: ...


class Interpreter:
    """Runs steps; `feed` gives a stage the batch's own Values for one micro-batch."""

    def __init__(
        self,
        program: Program,
        worker: int,
        *,
        stages: Mapping[Node, Stage],
        routes: Routes,
        carrier: Carrier,
        updates: Updates,
        feed: Callable[[int, int], Tensors],
        pulse: Pulse,
        tracer: Tracer,
        forwards: bool = False,
        converting_ns: Callable[[], int] | None = None,
    ) -> None:
        """Builds the list of calls. With `forwards` the program has forwards alone.

        Workers then never run far ahead of their readers, and nothing is on its way when a step ends.
        Args: `worker` is this rank's position in the pipeline; `stages` are those that live on it; `feed`
            takes the number of a stage and a micro-batch; `converting_ns` tells how long conversions have taken so far.
        """
        self._worker, self._pulse, self._tracer = worker, pulse, tracer
        self._converting_ns = converting_ns
        self._hands = hands = _Hands(stages, routes, carrier, updates, feed)
        releases = releases_after(program, worker)
        awaited = releases_before(program, worker) if forwards else {}
        drained = [ActionCall(carrier.drain, WAITS)] if forwards else []
        self.calls: list[ActionCall] = [*drained]
        for position, instruction in enumerate(program.ranks[worker]):
            action = instruction.action
            if action is not None and action.kind is Kind.STEP:
                self.calls.append(ActionCall(partial(updates.wait, action.pipe, action.stage), WAITS))
            for message in awaited.get(position, ()):
                self.calls.append(ActionCall(partial(carrier.release, message), WAITS))
            self.calls.append(hands.call(instruction))
            for message in releases.get(position, ()):
                self.calls.append(ActionCall(partial(carrier.release, message), SILENT))
        self.calls += drained

    def run(self, step: int) -> None:
        """Runs one step: every call of the list in order.

        Args: `step` is the number in the trace.
        """
        try:
            self._tracer.record(step, self.calls, self._pulse.beat, self._converting_ns)
        except IndexError as error:  # of a kernel: a class or a word of a sample that the model does not have
            raise BadInput(
                f"a sample has an index that the model does not have: {error}",
                where=f"step {step}",
                allowed="labels and words below the sizes of the model, and ignore_index",
            ) from error
        mail = self._hands.mail
        assert not mail, f"messages nobody took: {sorted(map(str, mail))}"


@dataclass(frozen=True, eq=False)
class _Hands:
    """Everything that calls act on.

    Calls hold this and not the interpreter, which holds them. So a run whose last user lets go of it is gone
    at once, and its weights with it.
    """

    stages: Mapping[Node, Stage]
    routes: Routes
    carrier: Carrier
    updates: Updates
    feed: Callable[[int, int], Tensors]
    mail: dict[Message, dict[str, Tensor]] = field(default_factory=dict)

    def call(self, instruction: Instruction) -> ActionCall:
        if instruction.action is not None:
            return ActionCall(self._action(instruction.action), encode(instruction.action))
        message = instruction.message
        assert message is not None
        if instruction.op == "wait":
            return ActionCall(partial(self._wait, message), WAITS)
        return ActionCall(
            partial(self.carrier.post if instruction.op == "post" else self._send, message), SILENT
        )

    def _wait(self, message: Message) -> None:
        self.mail[message] = self.carrier.wait(message)

    def _send(self, message: Message) -> None:
        self.carrier.send(message, self.mail.pop(message))

    def _action(self, action: Action) -> Callable[[], None]:
        kind, number, micro, pipe = action
        if kind is Kind.SYNC:
            return partial(self.updates.launch, pipe, number)
        if kind is Kind.STEP:
            return partial(self.updates.step, pipe, number)
        stage = self.stages[pipe, number]
        if kind is Kind.W:
            return partial(stage.weight_half, micro)
        if kind is Kind.R:
            return partial(stage.recompute, micro)
        arriving, leaving = self._messages(action, "act" if kind is Kind.F else "grad")
        if kind is Kind.F:
            return partial(self._forward, stage, number, micro, arriving, leaving)
        half = stage.backward if kind is Kind.B else stage.input_half
        return partial(self._backward, half, micro, arriving, leaving)

    def _messages(
        self, action: Action, direction: Direction
    ) -> tuple[tuple[Message, ...], tuple[tuple[Message, Names], ...]]:
        _, stage, micro, pipe = action
        sources = self.routes.arriving(direction, stage)
        targets = self.routes.leaving(direction, stage)
        arriving = tuple(Message(direction, pipe, micro, source, stage) for source, _ in sources)
        return arriving, tuple(
            (Message(direction, pipe, micro, stage, target), names) for target, names in targets
        )

    def _forward(
        self,
        stage: Stage,
        number: int,
        micro: int,
        arriving: Sequence[Message],
        leaving: Sequence[tuple[Message, Names]],
    ) -> None:
        inputs = dict(self.feed(number, micro))
        for message in arriving:
            inputs |= self.mail.pop(message)
        outputs = stage.forward(micro, inputs)
        for message, names in leaving:
            self.mail[message] = {name: outputs[name] for name in names}

    def _backward(
        self,
        half: Callable[[int, Tensors], dict[str, Tensor]],
        micro: int,
        arriving: Sequence[Message],
        leaving: Sequence[tuple[Message, Names]],
    ) -> None:
        grads: dict[str, Tensor] = {}
        for message in arriving:
            grads |= self.mail.pop(message)
        passed = half(micro, grads)
        for message, names in leaving:
            self.mail[message] = {name: passed[name] for name in names}


AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def program_of(plan: Plan, world: World, replica: int | None = None) -> Program:
    """Returns the program of a plan, which every rank derives for itself, the same everywhere.

    Args: `world` tells whether messages keep one order a rank (GPUs) or one a channel. With a `replica`, the program
        is that of its share.
    """
    return lower(schedule_of(plan, replica), plan.hops, plan.times, layout=_layout(world))


def forward_program(plan: Plan, world: World, routes: Routes, replica: int | None = None) -> Program:
    """Returns the program of a plan's forwards alone, in the plan's order.

    Args: `world` tells whether messages keep one order a rank (GPUs) or one a channel; `routes` has what
        travels; `replica` is as of `program_of`. Where that order would wait for ever, micro-batches go one after another.
    """
    schedule = schedule_of(plan, replica)
    orders = tuple(tuple(a for a in order if a.kind is Kind.F) for order in schedule.orders)
    known = {(hop.sender, hop.receiver): hop.ns for hop in plan.hops if hop.direction == "act"}
    hops = [
        Hop(direction="act", sender=a, receiver=b, values=names, bytes=0, ns=known.get((a, b), 0))
        for (a, b), names in sorted(routes.act.items())
    ]
    try:
        return lower(replace(schedule, orders=orders), hops, plan.times, layout=_layout(world))
    except BadInput:  # the model may have dependences that its training has not
        orders = tuple(tuple(sorted(order, key=lambda a: (a.micro, a.stage))) for order in orders)
        return lower(replace(schedule, orders=orders), hops, plan.times, layout=_layout(world))


def _layout(world: World) -> Layout:
    """Returns "global" for NCCL, which executes what a rank issues in order, and "channel" for gloo, whose
    channels are independent."""
    return "global" if world.device.type == "cuda" else "channel"


class NotFinite(ShardwrightError):
    """The error for NaN or infinity where a training cannot go on, with where it was first seen."""


def profiled(run: Callable[[], T], path: Path | None) -> T:
    """Runs a function under torch.profiler, which slows it.

    Args: `path` takes what was recorded, with a mark of this host's clock; nothing is recorded where it is None.
    Returns: what the function returns.
    """
    if path is None:
        return run()
    from torch.profiler import profile, record_function

    path.parent.mkdir(exist_ok=True)
    with profile() as recorded:
        for _ in range(MARKS):  # the first ones begin late
            with record_function(CLOCK_MARK.format(ns=clock_ns())):
                pass
        done = run()
    recorded.export_chrome_trace(str(path))
    return done
