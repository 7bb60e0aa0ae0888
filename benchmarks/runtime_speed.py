"""How close real steps come to their simulation, and torch.distributed.pipelining beside ours in the same rounds.

Stages are small torch modules whose forward and backward sleep, so that ranks that share cores do not slow each
other down; messages, autograd and both runtimes are real. Every rank is a process over gloo. At two ranks stages
that compute are run too (`compute_stages`), each rank on a core of its own.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from benchmarks.compute_stages import ROWS, WIDTH, Apart, Work, WorkingStage, on_a_core, times_of
from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.replay import replay
from planner.plan import (
    Axes,
    Batch,
    Hop,
    Memory,
    ModelRef,
    Place,
    Plan,
    Prediction,
    Provenance,
    ScheduleChoice,
    StagePlan,
    StageTimes,
    schedule_of,
)
from planner.schedule import generate
from planner.simulate import compile, duration_vector
from planner.simulate.longest_path import makespan
from planner.timeline import Timeline
from runtime.execute import Interpreter, Pulse, Tracer, program_of
from runtime.execute.interpreter import Stage
from runtime.local import supervise
from runtime.messages import Transport
from runtime.rank.sleeping import Sleeper, routes_of_hops
from runtime.runfolder import Heartbeat, Paths
from runtime.stage import backward
from runtime.stage.backward import Boundary
from runtime.world import RankMesh, World
from runtime.world import world as groups

MS = 1_000_000
SHAPE = (4, 4096)  # a message of 64 KiB
OURS = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "chimera", "chimera-zb")
PEERS = ("gpipe", "1f1b", "interleaved")
PEER = "torch "
APART = "half of it each, no message"
WARM_UP = 2
# Aims, by milliseconds that a worker sleeps: the measured step over its replay, and over the ideal.
OVER_REPLAY, OVER_IDEAL = {20: 1.03, 5: 1.05}, {20: 1.03, 5: 1.06}
OVER_TORCH, CHIMERA_PERCENT = 1.01, 3


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, stage: Sleeping) -> Tensor:
        ctx.stage = stage  # type: ignore[attr-defined]
        stage.sleeper.sleep(stage.forward_s)
        return x * weight

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        stage: Sleeping = ctx.stage  # type: ignore[attr-defined]
        stage.sleeper.sleep(stage.backward_s)
        return dy.contiguous(), dy.new_ones(()), None


class Sleeping(nn.Module):
    """One stage: a forward and a backward of given lengths, one parameter."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.sleeper = forward_s, backward_s, Sleeper()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Sleep.apply(x, self.weight, self)  # type: ignore[no-untyped-call]
        return y


class SleepingStage:
    """`Sleeping` as our interpreter runs it; its weight half sleeps alone."""

    def __init__(self, module: Sleeping, weight_s: float, incoming: str, outgoing: str) -> None:
        self.module, self._weight_s, self._in, self._out = module, weight_s, incoming, outgoing
        self._anchor = backward.anchor_on(torch.device("cpu"))
        self._live: dict[int, tuple[Boundary, Tensor]] = {}

    def forward(self, micro: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        boundary = Boundary(self._anchor)
        given = next(iter(inputs.values())) if inputs else torch.zeros(SHAPE)
        y = self.module(boundary.enter(self._in, given))
        self._live[micro] = boundary, y
        return {self._out: y.detach()}

    def backward(self, micro: int, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        boundary, y = self._live.pop(micro)
        seed = next(iter(grads.values())) if grads else torch.ones_like(y)
        backward.whole([(backward.edge(y), seed)])
        return boundary.collect()

    input_half = backward

    def weight_half(self, micro: int) -> None:
        self.module.sleeper.sleep(self._weight_s)

    def recompute(self, micro: int) -> None:
        raise NotImplementedError("nothing is recomputed here")


class NoUpdates:
    def launch(self, pipe: int, stage: int) -> None: ...
    def wait(self, pipe: int, stage: int) -> None: ...
    def step(self, pipe: int, stage: int) -> None: ...


@dataclass(frozen=True)
class Setting:
    workers: int
    micros: int
    forward_ms: float  # that a worker sleeps; 0 where it computes
    rounds: int

    @property
    def computes(self) -> bool:
        return not self.forward_ms

    @property
    def message(self) -> tuple[int, int]:
        return (ROWS, WIDTH) if self.computes else SHAPE


def plan_of(family: str, setting: Setting) -> Plan:
    """A chain of equal stages, F = I = W; a worker's work is the same however many stages it is cut into."""
    schedule = generate(family, workers=setting.workers, micros=setting.micros)
    stages = schedule.stages
    f = int(setting.forward_ms * MS * setting.workers / stages)
    times = StageTimes(forward_ns=f, backward_ns=2 * f, input_grad_ns=f, weight_grad_ns=f)
    times = times_of(stages) if setting.computes else times
    size = 4 * setting.message[0] * setting.message[1]
    pairs = [("act", s, s + 1) for s in range(stages - 1)] + [("grad", s + 1, s) for s in range(stages - 1)]
    memory = Memory(parameters=0, gradients=0, optimizer=0, activations=0, buffers=0, margin=0, limit=0)
    return Plan(
        model=ModelRef(workload="sleep", fingerprint="none"),
        batch=Batch(samples=setting.micros, micro=1, micros=setting.micros),
        axes=Axes(data=1, pipeline=setting.workers, spatial=1),
        schedule=ScheduleChoice(
            family=family,
            pairs=1,
            chunks=1,
            place=schedule.place,
            pipe_of=schedule.pipe_of,
            orders=tuple(schedule.to_text().splitlines()),
        ),
        stages=tuple(StagePlan(layers=(f"s{s}",), spatial=()) for s in range(stages)),
        places=tuple(
            Place(rank=r, node=0, slot=r, data=0, pipeline=r, spatial=0) for r in range(setting.workers)
        ),
        times=(times,) * stages,
        hops=tuple(
            Hop(direction=d, sender=a, receiver=b, values=("x",), bytes=size, ns=0) for d, a, b in pairs
        ),  # type: ignore[arg-type]
        prediction=Prediction(step_ns=0, low_ns=0, high_ns=0, memory=(memory,) * setting.workers),
        provenance=Provenance(profile="none", cluster="none"),
    )


class Ours:
    """One family on one rank."""

    def __init__(self, plan: Plan, setting: Setting, world: World, pulse: Pulse) -> None:
        mesh, schedule, routes = RankMesh.of(plan), schedule_of(plan), routes_of_hops(plan.hops)
        self.tracer = Tracer(world.rank)
        split = any("I" in line for line in plan.schedule.orders)
        self.transport = Transport(
            routes=routes,
            place=schedule.place,
            peers=mesh.peers(world.rank),
            device=world.device,
            group=world.group,
        )
        stages: dict[tuple[int, int], Stage] = {}
        for pipe, s in mesh.held(world.rank):
            stages[pipe, s] = _stage(plan, s, split, setting.computes)
        self.interpreter = Interpreter(
            program_of(plan, world),
            world.rank,
            stages=stages,
            routes=routes,
            carrier=self.transport,
            updates=NoUpdates(),
            feed=lambda stage, micro: {},
            pulse=pulse,
            tracer=self.tracer,
        )

    def step(self, step: int) -> None:
        self.interpreter.run(step)
        self.transport.finish()


def _stage(plan: Plan, s: int, split: bool, computes: bool) -> Stage:
    t, incoming, outgoing = plan.times[s], f"grad {s}>{s - 1}", f"act {s}>{s + 1}"
    if computes:
        return WorkingStage(Work(len(plan.stages)), incoming, outgoing, split=split)
    module = Sleeping(t.forward_ns * 1e-9, (t.input_grad_ns if split else t.backward_ns) * 1e-9)
    return SleepingStage(module, t.weight_grad_ns * 1e-9, incoming, outgoing)


class Theirs:
    """The same stages under torch's own schedules."""

    def __init__(self, family: str, setting: Setting, world: World) -> None:
        from torch.distributed import pipelining as pp

        self._world, self._setting = world, setting
        chunks = 2 if family == "interleaved" else 1
        f = setting.forward_ms * 1e-3 / chunks
        total = setting.workers * chunks
        modules = [Work(total) if setting.computes else Sleeping(f, 2 * f) for _ in range(chunks)]
        stages = [
            pp.PipelineStage(module, world.rank + c * setting.workers, total, world.device)
            for c, module in enumerate(modules)
        ]
        loss = partial(_sum)
        if family == "interleaved":
            self._schedule = pp.ScheduleInterleaved1F1B(stages, setting.micros, loss_fn=loss)  # type: ignore[arg-type]
        else:
            kind = pp.ScheduleGPipe if family == "gpipe" else pp.Schedule1F1B
            self._schedule = kind(stages[0], setting.micros, loss_fn=loss)  # type: ignore[assignment]

    def step(self, step: int) -> None:
        rows, width = self._setting.message
        x = torch.zeros(rows * self._setting.micros, width, requires_grad=not self._setting.computes)
        first, last = self._world.rank == 0, self._world.rank == self._world.size - 1
        given = (x,) if first else ()
        wanted = {"target": x.detach()} if last else {}
        self._schedule.step(*given, **wanted)


def _sum(output: Tensor, target: Tensor) -> Tensor:
    return output.sum()


def rank_main(paths: Paths, setting: Setting, rank: int) -> None:
    torch.set_num_threads(1)
    world = groups.join(paths.rendezvous(0), rank, setting.workers, torch.device("cpu"))
    plans = {family: plan_of(family, setting) for family in allowed(setting)}
    heart = Heartbeat(paths.heartbeat, rank, setting.workers)
    variants: dict[str, Ours | Theirs | Apart] = {
        family: Ours(plan, setting, world, heart) for family, plan in plans.items()
    }
    variants |= {PEER + family: Theirs(family, setting, world) for family in PEERS if family in plans}
    if setting.computes:
        variants[APART] = Apart(setting.micros, setting.workers)
        on_a_core(rank)
    gc.collect()
    gc.freeze()  # as a launched rank does
    took: dict[str, list[tuple[int, int]]] = {name: [] for name in variants}
    for number in range(WARM_UP + setting.rounds):
        for name, variant in variants.items():
            world.barrier()
            start = time.monotonic_ns()
            variant.step(number)
            took[name].append((start, time.monotonic_ns()))
    for name, variant in variants.items():
        if isinstance(variant, Ours):
            variant.tracer.timeline().save(paths.root / f"{name}-{rank}.npz")
    paths.rank_metrics(rank).write_text(json.dumps(took))
    world.barrier()
    world.close()


def allowed(setting: Setting) -> list[str]:
    """Interleaved dealing needs micro-batches in multiples of the workers, which all settings here have."""
    return list(OURS)


@dataclass(frozen=True)
class Measured:
    median_ms: float
    ideal_ms: float
    replayed: float | None  # measured over replayed, median
    rounds_ms: list[float]


def measure(setting: Setting) -> dict[str, Measured]:
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder)).make()
        outcome = supervise(paths, setting.workers, 120.0, partial(rank_main, paths, setting))
        if outcome.state != "done":
            raise RuntimeError(outcome.cause)
        parts = [json.loads(paths.rank_metrics(rank).read_text()) for rank in range(setting.workers)]
        return {name: _of_variant(name, setting, paths, [part[name] for part in parts]) for name in parts[0]}


def _of_variant(name: str, setting: Setting, paths: Paths, spans: list[list[tuple[int, int]]]) -> Measured:
    family = name.removeprefix(PEER)
    plan = plan_of("1f1b" if name == APART else family, setting)
    compiled = compile(schedule_of(plan), plan.hops, update="rolling")
    ideal = int(makespan(compiled, duration_vector(plan.times, plan.hops))) / MS
    rounds = range(WARM_UP, WARM_UP + setting.rounds)
    walls = [(max(s[i][1] for s in spans) - min(s[i][0] for s in spans)) / MS for i in rounds]
    replayed = None
    if name == family != APART:
        traces = [Timeline.load(paths.root / f"{name}-{rank}.npz") for rank in range(setting.workers)]
        replayed = statistics.median(
            w / r for w, r in zip(walls, _replays(plan, traces, rounds), strict=True)
        )
    return Measured(statistics.median(walls), ideal, replayed, walls)


def _replays(plan: Plan, traces: list[Timeline], rounds: range) -> list[float]:
    from planner.timeline import concatenate

    program = program_of(plan, groups.alone(torch.device("cpu")))
    whole = concatenate(traces)
    identity: Callable[[int], int] = int
    return [replay(program, whole.of_step(number), identity, plan) / MS for number in rounds]


def table_of(setting: Setting) -> Table:
    found = measure(setting)
    base = found["1f1b"]
    rows: list[tuple[Cell, ...]] = []
    for name, m in found.items():
        peer = found.get(PEER + name)
        beside = None
        if peer is not None:
            beside = statistics.median(a / b for a, b in zip(m.rounds_ms, peer.rounds_ms, strict=True))
        ratio, simulated = m.median_ms / base.median_ms, m.ideal_ms / base.ideal_ms
        own = (name, m.median_ms, m.ideal_ms, m.median_ms / m.ideal_ms, m.replayed, beside)
        rows.append((*own, ratio, simulated, ratio / simulated))
    return Table(
        title=f"D={setting.workers}, N={setting.micros}, F={setting.forward_ms:g} ms a worker",
        columns=(
            "schedule",
            "ms",
            "ideal ms",
            "over ideal",
            "over replay",
            "over torch's, paired",
            "over 1F1B",
            "simulated",
            "of that",
        ),
        rows=rows,
        notes=(
            f"medians of {setting.rounds} interleaved rounds; the ideal and the replay have hops of no time",
        ),
    )


def computing(quick: bool) -> list[Setting]:
    return [Setting(2, micros, 0, 5 if quick else 25) for micros in ((2,) if quick else (2, 4))]


def _computed(setting: Setting) -> Table:
    """Ratios are of rounds side by side."""
    found = measure(setting)
    rows: list[tuple[Cell, ...]] = []
    for name, m in found.items():
        beside = [found.get(PEER + name), found["1f1b"], found[APART]]
        ratios = [
            statistics.median(a / b for a, b in zip(m.rounds_ms, other.rounds_ms, strict=True))
            if other
            else None
            for other in beside
        ]
        simulated = None if name == APART else m.ideal_ms / found["1f1b"].ideal_ms
        rows.append((name, m.median_ms, min(m.rounds_ms), m.replayed, *ratios, simulated))
    return Table(
        title=f"real compute, D={setting.workers}, N={setting.micros}, a core a rank",
        columns=(
            "schedule",
            "ms",
            "least ms",
            "over replay",
            "over torch's, paired",
            "over 1F1B, paired",
            "over no message",
            "simulated over 1F1B",
        ),
        rows=rows,
        notes=(
            f"medians of {setting.rounds} interleaved rounds of linear layers, {ROWS} x {WIDTH}, without replicas' sums. "
            f"1F1B over no message must read {1 + 1 / setting.micros:.2f}; otherwise other jobs had the idle core.",
        ),
    )


def settings(quick: bool) -> list[Setting]:
    """All of them take about eight minutes where nothing else runs, most of that asleep."""
    if quick:
        return [Setting(2, 4, 20, 5)]
    few = [Setting(workers, 2 * workers, ms, 9) for ms in (20, 5) for workers in (2, 4, 8)]
    return few + [Setting(16, 16, ms, 5) for ms in (20, 5)]


Found = tuple[Setting, Sequence[tuple[Cell, ...]]]


def missed(slept: Sequence[Found], worked: Sequence[Found]) -> tuple[str, ...]:
    """Returns what was missed of the aims, from the settings and rows of the tables that sleep and that compute.

    Stages that compute are held to the two aims that name no length: over torch's runtime, and Chimera's ratio.
    """
    found: list[str] = []
    for column, step, aims in ((4, "its replay", OVER_REPLAY), (3, "the ideal", OVER_IDEAL)):
        for ms, aim in aims.items():
            own = _ratios([each for each in slept if each[0].forward_ms == ms], column)
            found += above(f"The measured step over {step} at {ms} ms", own, aim)
    beside = [*_ratios(slept, 5), *_ratios(worked, 4)]
    found += above("Our step over that of torch's runtime", beside, OVER_TORCH)
    apart = [(name, 100 * abs(x - 1)) for name, x in _ratios(slept, 8) if name.startswith("chimera,")]
    for setting, rows in worked:
        ours = [row for row in rows if row[0] == "chimera"]
        off = [100 * abs(float(row[5] or 0) / float(row[7] or 1) - 1) for row in ours]
        apart += [(_case("chimera", setting), x) for x in off]
    found += above("The distance of Chimera over 1F1B from its simulation", apart, CHIMERA_PERCENT, " %")
    return tuple(found)


def _ratios(every: Sequence[Found], column: int) -> list[tuple[str, float]]:
    """Returns what a column holds of our own schedules."""
    return [
        (_case(str(row[0]), setting), float(row[column] or 0))
        for setting, rows in every
        for row in rows
        if row[0] in OURS and row[column] is not None
    ]


def _case(name: str, setting: Setting) -> str:
    how = "real compute" if setting.computes else f"F={setting.forward_ms:g} ms"
    return f"{name}, D={setting.workers}, N={setting.micros}, {how}"


def run(quick: bool) -> Result:
    slept, worked = settings(quick), computing(quick)
    sleeping, computed = [table_of(each) for each in slept], [_computed(each) for each in worked]
    return Result(
        name="runtime_speed",
        claim="Measured over replay at most 1.03 at 20 ms and 1.05 at 5 ms, over the ideal 1.03 and 1.06; over torch's own "
        "runtime at most 1.01; Chimera over 1F1B within 3 % of the simulated ratio.",
        missed=missed(
            [(each, table.rows) for each, table in zip(slept, sleeping, strict=True)],
            [(each, table.rows) for each, table in zip(worked, computed, strict=True)],
        ),
        tables=[*sleeping, *computed],
    )


if __name__ == "__main__":
    main(run)
