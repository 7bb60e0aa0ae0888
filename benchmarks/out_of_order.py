"""What out-of-order backprop gains, measured beside what the simulator says, the peers in the same rounds.

Stages sleep for their times, so that ranks that share cores do not slow each other down; processes, interpreter,
messages and the launches of sums are real. The link of the data-parallel part is emulated: a sum starts when every
replica has launched it and those before it are done, and takes a stated latency and bandwidth, for us and for DDP.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.harness import Cell, Result, Table, above, main
from benchmarks.slow_link import Replica, bucketed_ns
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
    coordinates,
)
from planner.schedule import Overlap, Schedule, generate, overlapped
from planner.simulate import period_of_plan
from planner.simulate.best_gradient_order import candidates
from planner.simulate.longest_path import neighbour_hops
from runtime.local import supervise
from runtime.rank import sleeping
from runtime.rank.sleeping import SleepRank
from runtime.runfolder import Paths
from runtime.world import World
from runtime.world import world as groups
from tests.pool import Pool
from tests.runtime.overlaps import STEPS, Combination, difference, every

MS = 1_000_000
MESSAGE_BYTES = 65_536
PIPELINE_PERCENT, REPLICAS_PERCENT = 4, 5
WARM_UP = 2  # steps of each turn that are not counted


def plan_of(schedule: Schedule, times: Sequence[StageTimes], hops: Sequence[Hop], *, data: int = 1) -> Plan:
    axes = Axes(data=data, pipeline=schedule.workers)
    memory = Memory(parameters=0, gradients=0, optimizer=0, activations=0, buffers=0, margin=0, limit=0)
    rolling = schedule.workers == 1
    return Plan(
        model=ModelRef(workload="sleep", fingerprint="none"),
        batch=Batch(samples=schedule.micros * data, micro=1, micros=schedule.micros),
        axes=axes,
        schedule=ScheduleChoice(
            family=schedule.family,
            pairs=1,
            chunks=int(schedule.settings["chunks"]),
            update="rolling" if rolling else "barrier",
            place=schedule.place,
            pipe_of=schedule.pipe_of,
            orders=tuple(schedule.to_text().split("\n")),
        ),
        stages=tuple(
            StagePlan(layers=(f"s{s}",), spatial=(), gather_before="") for s in range(schedule.stages)
        ),
        places=tuple(
            Place(rank=r, node=0, slot=r, **coordinates(axes, r)._asdict())
            for r in range(data * schedule.workers)
        ),
        times=tuple(times),
        hops=tuple(hops),
        prediction=Prediction(step_ns=1, low_ns=1, high_ns=1, memory=(memory,) * schedule.workers),
        provenance=Provenance(profile="none", cluster="none"),
    )


@dataclass(frozen=True)
class Pipeline:
    """F = I = W a layer."""

    layers: int
    workers: int
    micros: int
    layer_ms: float

    def plans(self, hop_ms: float = 0.0) -> dict[str, Plan]:
        each, numbers = self.layers // self.workers, {"workers": self.workers, "micros": self.micros}
        found = {
            "conventional": self._plan(generate("gpipe", **numbers), hop_ms),
            "fast-forwarding": self._plan(generate("listed", **numbers), hop_ms),
        }
        dealt = generate("listed", **numbers, chunks=each) if each > 1 else None
        return found if dealt is None else {**found, "and modulo allocation": self._plan(dealt, hop_ms)}

    def _plan(self, schedule: Schedule, hop_ms: float) -> Plan:
        ns = int(self.layer_ms * MS) * self.layers // schedule.stages
        times = StageTimes(forward_ns=ns, backward_ns=2 * ns, input_grad_ns=ns, weight_grad_ns=ns)
        hop_ns = int(hop_ms * MS)
        hops = neighbour_hops(schedule.stages, act_ns=hop_ns, grad_ns=hop_ns, size_bytes=MESSAGE_BYTES)
        return plan_of(schedule, (times,) * schedule.stages, hops)


@dataclass(frozen=True)
class Replicas:
    """F = I = W a layer, parameters in proportion to its depth, one micro-batch; sums in all take `ratio` of the work."""

    data: int
    layers: int
    layer_ms: float
    ratio: float
    latency_ms: float = 0.2
    model_bytes: int = 100 * 2**20

    @property
    def sizes(self) -> list[int]:
        whole = sum(range(1, self.layers + 1))
        return [self.model_bytes * depth // whole for depth in range(1, self.layers + 1)]

    @property
    def byte_ns(self) -> float:
        work_ns = 3 * self.layers * self.layer_ms * MS
        return (self.ratio * work_ns - self.layers * self.latency_ms * MS) / self.model_bytes

    @property
    def times(self) -> list[StageTimes]:
        ns = int(self.layer_ms * MS)
        one = StageTimes(forward_ns=ns, backward_ns=2 * ns, input_grad_ns=ns, weight_grad_ns=ns)
        sums = [int(self.latency_ms * MS + size * self.byte_ns) for size in self.sizes]
        return [one.model_copy(update={"sync_ns": ns}) for ns in sums]

    def plans(self) -> dict[str, Plan]:
        one, times = generate("1f1b", workers=1, micros=1), self.times
        tried = list(candidates(one, times, (), parts=self.layers, update="rolling"))
        best = min(tried, key=lambda each: (each.ns, each.late)).overlap
        priority = next(each.overlap for each in tried if each.late == 0 and each.reordered)
        fifo = Overlap(parts=self.layers, updates="at_use")
        orders = {
            "in parts, updates at the end": replace(fifo, updates="at_end"),
            "FIFO, updates at use": fifo,
            "by priority, updates at use": priority,
            f"and k = {best.late} late": best,
        }
        made = {name: overlapped(one, overlap) for name, overlap in orders.items()}
        return {name: plan_of(schedule, times, (), data=self.data) for name, schedule in made.items()}


DDP, HOP = "torch DDP", "one message"


@dataclass(frozen=True)
class Turns:
    """Rounds in which every variant has a turn of some steps."""

    case: Pipeline | Replicas
    rounds: int
    steps: int

    @property
    def ranks(self) -> int:
        return self.case.workers if isinstance(self.case, Pipeline) else self.case.data


def rank_main(paths: Paths, turns: Turns, rank: int) -> None:
    torch.set_num_threads(1)
    world = groups.join(paths.rendezvous(0), rank, turns.ranks, torch.device("cpu"))
    variants: dict[str, SleepRank | Replica] = {
        name: sleeping(plan, world, _NoPulse()) for name, plan in turns.case.plans().items()
    }
    if isinstance(turns.case, Replicas):
        case = turns.case
        variants[DDP] = Replica(world, case.layer_ms * 1e-3, case.sizes, case.latency_ms * 1e-3, case.byte_ns)
    gc.collect()
    gc.freeze()  # as a launched rank does
    took: dict[str, list[list[int]]] = {name: [] for name in variants}
    for _ in range(turns.rounds):
        for name, variant in variants.items():
            world.barrier()
            ends = []
            for step in range(turns.steps):
                variant.step(step)
                ends.append(time.monotonic_ns())
            took[name].append(ends)
            time.sleep(0.3 * turns.case.layer_ms * 1e-3)  # what is still on the link belongs to nobody's turn
        if isinstance(turns.case, Pipeline):
            took.setdefault(HOP, []).append([hop_ns(world) for _ in range(turns.steps)])
    paths.rank_metrics(rank).write_text(json.dumps(took))
    world.barrier()
    world.close()


def hop_ns(world: World) -> int:
    """A message there and back between the first two ranks, halved; both have slept before each, as in a pipeline."""
    tensor, start = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8), time.monotonic_ns()
    time.sleep(0.01)
    if world.rank == 0:
        start = time.monotonic_ns()
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    elif world.rank == 1:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    return (time.monotonic_ns() - start) // 2


class _NoPulse:
    def beat(self, waiting: bool) -> None: ...


def measured_ms(turns: Turns) -> dict[str, list[float]]:
    """Of every variant and round the time from one step's end to the next, over all ranks; and of messages."""
    with tempfile.TemporaryDirectory() as folder:
        paths = Paths(Path(folder)).make()
        outcome = supervise(paths, turns.ranks, 300.0, partial(rank_main, paths, turns))
        if outcome.state != "done":
            raise RuntimeError(outcome.cause)
        parts = [json.loads(paths.rank_metrics(rank).read_text()) for rank in range(turns.ranks)]
    counted = turns.steps - WARM_UP
    hops = [statistics.median(row) / MS for row in parts[0].pop(HOP, [])]
    return {HOP: hops} | {
        name: [
            (max(part[name][r][-1] for part in parts) - max(part[name][r][WARM_UP - 1] for part in parts))
            / counted
            / MS
            for r in range(turns.rounds)
        ]
        for name in parts[0]
    }


def pipeline_table(case: Pipeline, rounds: int) -> Table:
    found = measured_ms(Turns(case, rounds, WARM_UP + 3))
    hop_ms = statistics.median(found.pop(HOP))
    simulated = {name: period_of_plan(plan) / MS for name, plan in case.plans(hop_ms).items()}
    without = {name: period_of_plan(plan) / MS for name, plan in case.plans().items()}
    base = "conventional"
    rows: list[tuple[Cell, ...]] = []
    for name, ms in found.items():
        gain = statistics.median(a / b for a, b in zip(found[base], ms, strict=True))
        expected, bare = (each[base] / each[name] for each in (simulated, without))
        rows.append((name, statistics.median(ms), simulated[name], gain, expected, gain / expected - 1, bare))
    return Table(
        title=f"{case.layers} layers on {case.workers} workers, {case.micros} micro-batches, "
        f"F = I = W = {case.layer_ms:g} ms a layer",
        columns=("order", "ms", "simulated ms", "times faster, paired", "simulated", "apart", "without hops"),
        rows=rows,
        notes=(
            f"medians of {rounds} interleaved rounds; real messages of 64 KiB, {hop_ms:.2g} ms each in the same run",
        ),
    )


def replicas_table(case: Replicas, rounds: int, steps: int) -> Table:
    found = measured_ms(Turns(case, rounds, steps))
    del found[HOP]
    simulated = {name: period_of_plan(plan) / MS for name, plan in case.plans().items()}
    simulated[DDP] = bucketed_ns(case.layer_ms * MS, case.sizes, case.latency_ms * MS, case.byte_ns) / MS
    best = found[list(simulated)[-2]]
    rows: list[tuple[Cell, ...]] = []
    for name, ms in found.items():
        median = statistics.median(ms)
        gain = statistics.median(a / b for a, b in zip(ms, best, strict=True))
        least = simulated[list(simulated)[-2]]
        rows.append((name, median, simulated[name], median / simulated[name], gain, simulated[name] / least))
    bandwidth = 1.0 / case.byte_ns
    return Table(
        title=f"{case.data} replicas, {case.layers} layers of F = I = W = {case.layer_ms:g} ms; "
        f"sums {case.ratio:g} of the work",
        columns=(
            "order",
            "ms a step",
            "simulated ms",
            "over simulated",
            "last of ours gains, paired",
            "simulated",
        ),
        rows=rows,
        notes=(
            f"link: {case.latency_ms:g} ms and {bandwidth:.3g} GB/s a sum of {case.model_bytes >> 20} MiB in all; "
            f"medians of {rounds} interleaved rounds of {steps - WARM_UP} counted steps",
            "DDP has its usual buckets of 1 and 25 MiB on the same link, and updates at the end; "
            "its buffers hold a 25th of the bytes, so that copying them does not disturb the others",
        ),
    )


def equality_table(combinations: list[Combination]) -> Table:
    pool = Pool(["tests.runtime.jobs"])
    counts: dict[int, int] = {}
    try:
        for number, combination in enumerate(combinations):
            with tempfile.TemporaryDirectory() as folder:
                apart = difference(pool, combination, Path(folder) / str(number))
            if apart > 0:
                raise RuntimeError(f"{combination} is {apart} apart")
            counts[combination.holders] = counts.get(combination.holders, 0) + 1
    finally:
        pool.close()
    return Table(
        title=f"{STEPS} steps out of order against the plain order: losses and weights the same to the bit",
        columns=("holders of a gradient", "combinations", "that differ"),
        rows=[(holders, counts[holders], 0) for holders in sorted(counts)],
        notes=(
            "every optimizer with every family, drawn: depth, replicas, parts, k, order of sums, updates at use or "
            "at the end, precision, recompute, sharded optimizer, clipping",
        ),
    )


def missed(pipelines: Sequence[Table], replicas: Sequence[Table]) -> tuple[str, ...]:
    """Returns what was missed of the two ratios; torch DDP has a simulation too and is held to it. Equality raises."""
    ratios = [(f"{row[0]}, {t.title}", 100 * abs(float(row[5] or 0))) for t in pipelines for row in t.rows]
    steps = [(f"{row[0]}, {t.title}", 100 * abs(float(row[3] or 0) - 1)) for t in replicas for row in t.rows]
    return (
        *above("The distance of a pipeline's gain from its simulation", ratios, PIPELINE_PERCENT, " %"),
        *above("The distance of a step of replicas from its simulation", steps, REPLICAS_PERCENT, " %"),
    )


def run(quick: bool) -> Result:
    pipelines = [Pipeline(8, 4, 4, 12.0)] if quick else [Pipeline(8, 4, 4, 40.0), Pipeline(24, 8, 8, 20.0)]
    ratios = (0.71,) if quick else (0.36, 0.71, 0.85, 1.07)
    layers, rounds, steps, layer_ms = (8, 3, 6, 6.0) if quick else (16, 5, 7, 10.0)
    combinations = every(0)[:: 27 if quick else 1]
    piped = [pipeline_table(case, rounds) for case in pipelines]
    replicated = [replicas_table(Replicas(4, layers, layer_ms, ratio), rounds, steps) for ratio in ratios]
    return Result(
        name="out_of_order",
        claim="Pipelines: measured within 4 % of the simulated ratios. Replicas on a slow link: measured over "
        "simulated within 5 %. Losses and weights to the bit.",
        missed=missed(piped, replicated),
        tables=[*piped, *replicated, equality_table(combinations)],
    )


if __name__ == "__main__":
    main(run)
