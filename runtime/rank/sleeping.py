"""Runs a plan for its timing alone: stages sleep for their planned times, and messages have their real size.

Ranks that sleep share cores without slowing each other down. A laptop can so run the plan of a cluster, and
its order of events can be compared with the simulated one. The model itself is not needed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from planner.plan import Hop, Plan, StageTimes, schedule_of, times_of
from runtime.execute import Interpreter, Pulse, Tensors, Tracer, program_of
from runtime.messages import Routes, Transport
from runtime.world import RankMesh, World

NS = 1e-9
LATE_S = 1e-4  # first guess of how long a sleep takes too long
MOST_LATE_S = 3e-4  # never subtracts more, so that no sleep is shorter than planned by more than this


class Sleeper:
    """Sleeps for given times without spinning. The usual lateness of earlier sleeps is subtracted from each."""

    def __init__(self) -> None:
        self._late_s = LATE_S

    def sleep(self, seconds: float) -> None:
        """Sleeps for a time, about as long as asked.

        Args: `seconds` below the usual lateness are not slept at all.
        """
        if seconds <= self._late_s:
            return
        end = time.perf_counter() + seconds
        time.sleep(seconds - self._late_s)
        late = self._late_s + time.perf_counter() - end
        self._late_s += 0.1 * (min(late, MOST_LATE_S) - self._late_s)


class SleepStage:
    """A stage that sleeps. `sends` and `passes` are the bytes of its messages forward and backward, by route."""

    def __init__(
        self, times: StageTimes, sends: Mapping[str, int], passes: Mapping[str, int], sleeper: Sleeper
    ) -> None:
        self._times, self._sleeper = times, sleeper
        self._sends = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sends.items()}
        self._passes = {name: torch.zeros(size, dtype=torch.uint8) for name, size in passes.items()}

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.forward_ns * NS)
        return self._sends

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.backward_ns * NS)
        return self._passes

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        self._sleeper.sleep(self._times.input_grad_ns * NS)
        return self._passes

    def weight_half(self, micro: int) -> None:
        self._sleeper.sleep(self._times.weight_grad_ns * NS)

    def recompute(self, micro: int) -> None:
        self._sleeper.sleep(self._times.recompute_ns * NS)


class SleepUpdates:
    """Gradient sums and updates that sleep.

    A sum starts when every holder has launched it and the sums before it are done. It then takes its planned
    time.
    """

    def __init__(
        self,
        times: Collection[StageTimes],
        groups: Mapping[int, dist.ProcessGroup],
        held: Collection[tuple[int, int]],
        sleeper: Sleeper,
    ) -> None:
        self._times, self._groups, self._sleeper = tuple(times), groups, sleeper
        self._held = {stage: sum(s == stage for _, s in held) for _, stage in held}
        self._launched: dict[int, int] = {}
        self._ends: dict[int, Future[float]] = {}  # when each sum is complete, known once it has started
        self._queue: deque[int] = deque()  # as launched; a communicator keeps that order
        self._everywhere: set[int] = set()  # of those, launched by every holder
        self._lock = Lock()
        self._free_s = 0.0

    def launch(self, pipe: int, stage: int) -> None:
        self._launched[stage] = self._launched.get(stage, 0) + 1
        if self._launched[stage] < self._held[stage]:
            return
        self._launched[stage] = 0
        self._ends[stage] = Future()
        self._queue.append(stage)
        if stage not in self._groups:
            self._start(stage)
            return
        work = dist.all_reduce(torch.zeros(1), group=self._groups[stage], async_op=True)
        assert work is not None
        work.get_future().then(lambda _: self._start(stage))

    def _start(self, stage: int) -> None:
        with self._lock:
            self._everywhere.add(stage)
            while self._queue and self._queue[0] in self._everywhere:
                first = self._queue.popleft()
                self._everywhere.discard(first)
                self._free_s = max(self._free_s, time.perf_counter()) + self._times[first].sync_ns * NS
                self._ends[first].set_result(self._free_s)

    def wait(self, pipe: int, stage: int) -> None:
        if stage in self._ends:
            end_s = self._ends[stage].wait()
            del self._ends[stage]  # not before it is set
            self._sleeper.sleep(end_s - time.perf_counter())

    def step(self, pipe: int, stage: int) -> None:
        self._sleeper.sleep(self._times[stage].step_ns * NS)


@dataclass(frozen=True)
class SleepRank:
    """One rank whose stages sleep. After a step of a plan with a barrier it waits for all other ranks."""

    plan: Plan
    world: World
    transport: Transport
    interpreter: Interpreter
    tracer: Tracer

    def step(self, step: int) -> None:
        """Runs one step.

        Args: `step` is the number of the step in the trace.
        """
        self.interpreter.run(step)
        self.transport.finish()
        if self.plan.schedule.update == "barrier":
            self.world.barrier()


def sleeping(plan: Plan, world: World, pulse: Pulse) -> SleepRank:
    """Returns one rank of a plan, with stages that sleep. All ranks call this at the same time.

    Args: `plan` gives times and bytes; `pulse` is beaten by every call of the rank.
    """
    mesh = RankMesh.of(plan)
    replica = mesh.by_rank[world.rank].data
    schedule, program, times = schedule_of(plan), program_of(plan, world, replica), times_of(plan, replica)
    held, sleeper, tracer = mesh.held(world.rank), Sleeper(), Tracer(world.rank, world.clock)
    groups = {}
    for stage in range(schedule.stages):
        ranks = mesh.holders([stage])
        if len(ranks) > 1 and (group := world.new_group(ranks)) is not None:
            groups[stage] = group
    routes = routes_of_hops(plan.hops)
    transport = Transport(
        routes=routes,
        place=schedule.place,
        peers=mesh.peers(world.rank),
        device=world.device,
        group=world.group,
    )
    stages = {
        (pipe, stage): SleepStage(
            times[stage],
            _leaving(plan.hops, "act", stage),
            _leaving(plan.hops, "grad", stage),
            sleeper,
        )
        for pipe, stage in held
    }
    interpreter = Interpreter(
        program,
        mesh.by_rank[world.rank].pipeline,
        stages=stages,
        routes=routes,
        carrier=transport,
        updates=SleepUpdates(times, groups, held, sleeper),
        feed=lambda stage, micro: {},
        pulse=pulse,
        tracer=tracer,
    )
    return SleepRank(plan, world, transport, interpreter, tracer)


def routes_of_hops(hops: Collection[Hop]) -> Routes:
    """Returns routes with one Value for each hop, which has all bytes of the hop.

    Args: `hops` are those of a plan.
    """
    return Routes(
        act={(h.sender, h.receiver): (_name(h),) for h in hops if h.direction == "act"},
        grad={(h.sender, h.receiver): (_name(h),) for h in hops if h.direction == "grad"},
    )


def _name(hop: Hop) -> str:
    return f"{hop.direction} {hop.sender}>{hop.receiver}"


def _leaving(hops: Collection[Hop], direction: str, stage: int) -> dict[str, int]:
    return {_name(hop): hop.bytes for hop in hops if hop.direction == direction and hop.sender == stage}
