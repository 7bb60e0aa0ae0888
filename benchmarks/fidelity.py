"""Predicted beside measured: step time and peak memory of plans of several models, families, axes and micro-batches.

Two ranks compute for real, one core each. Two to eight ranks, more than this machine may have cores, sleep for their
planned times inside the real runtime, with real messages. The two are marked apart and corrected apart: each plan is
predicted with corrections fitted to runs that are not it, of other models where stages compute, of the other half of
the plans where they sleep. Runs are interleaved in rounds, so that a slow minute of the machine falls on all of them.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.harness import Cell, Result, Table, main
from benchmarks.pool import PlanFailed, Pool, pool
from planner.calibrate import Observation, fit
from planner.calibrate.refine import repredicted
from planner.cluster import Cluster, Corrections, Link, Links, NodeGroup
from planner.errors import Infeasible
from planner.measure import measure
from planner.milp import Question, solve
from planner.plan import Plan
from planner.profile import LayerCost, Profile, Seconds
from planner.workload import load
from runtime.stage import Split

STEPS = {"layers": 12, "sleep": 10}
ROUNDS = 2
STEP_AIMS, MEMORY_AIM = {"compute": 0.10, "sleep": 0.05}, 0.03  # medians of steps; every plan's memory
SLEPT_MS = (
    120.0  # a step of the slowed model in one process, a micro-batch and rank: long against the clock's grain
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    workload: str
    arguments: dict[str, str]
    micros: tuple[int, ...]
    batch: int

    @property
    def name(self) -> str:
        return f"{self.workload} {' '.join(f'{k}={v}' for k, v in self.arguments.items())}".strip()


SUBJECTS = (
    Subject(workload="gpt2", arguments={"size": "tiny"}, micros=(4, 8), batch=32),
    Subject(workload="unet3d", arguments={"size": "tiny"}, micros=(2, 4), batch=16),
    Subject(workload="mlp", arguments={"width": "768", "layers": "8"}, micros=(64, 128), batch=512),
    Subject(workload="resnet50", arguments={"width": "16", "side": "64"}, micros=(2, 4), batch=16),
    Subject(workload="bert", arguments={"size": "tiny"}, micros=(8, 16), batch=64),
)


@dataclass(kw_only=True)
class Case:
    subject: Subject
    fix: dict[str, object]
    ranks: int
    content: str
    plan: Plan | None = None
    why: str = ""  # there is no plan
    runs: list[Observation] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def measured_ns(self) -> float:
        return statistics.fmean(run.step_ns for run in self.runs)


def cases(quick: bool) -> Iterator[Case]:
    for number, subject in enumerate(SUBJECTS[:2] if quick else SUBJECTS):
        yield from _computing(subject, quick)
        if not quick or number == 0:
            yield from _sleeping(subject, quick)


def _computing(subject: Subject, quick: bool) -> Iterator[Case]:
    small, large = subject.micros
    fixes: list[dict[str, object]] = [
        {"pipeline": 2, "schedule": "1f1b", "micro": small},
        {"pipeline": 2, "schedule": "chimera", "micro": large},
        {"data": 2, "pipeline": 1, "micro": small},
        {"pipeline": 2, "schedule": "zb-h1", "micro": large},
        {"pipeline": 2, "schedule": "1f1b", "micro": large, "recompute": "true"},
    ]
    yield from (
        Case(subject=subject, fix=fix, ranks=2, content="layers") for fix in fixes[: 2 if quick else 5]
    )


def _sleeping(subject: Subject, quick: bool) -> Iterator[Case]:
    micro = subject.micros[0]
    fixes: list[tuple[int, dict[str, object]]] = [
        (4, {"pipeline": 4, "data": 1, "schedule": "1f1b", "micro": micro}),
        (8, {"pipeline": 4, "data": 2, "schedule": "chimera", "micro": micro}),
        (4, {"pipeline": 4, "data": 1, "schedule": "chimera-zb", "micro": micro}),
        (2, {"pipeline": 2, "data": 1, "schedule": "zb-v", "micro": micro}),
    ]
    for ranks, fix in fixes[: 2 if quick else 4]:
        yield Case(subject=subject, fix=fix, ranks=ranks, content="sleep")


def machines(ranks: int, memory_bytes: int = 2 * 2**30) -> Cluster:
    """Processes of one machine, with a link that nobody measured: what it gets wrong is the corrections' business."""
    group = NodeGroup(count=1, device="cpu", devices_per_node=ranks, memory_bytes=memory_bytes)
    return Cluster(
        name="here", nodes=(group,), links=Links(node=Link(latency_s=2e-4, bandwidth_bytes_per_s=2e9))
    )


def slowed(profile: Profile, factor: float) -> Profile:
    """The same model with every layer slower, so that sleeping stages are long against the clock's grain."""

    def longer(time: Seconds) -> Seconds:
        return Seconds(median=time.median * factor)

    def cost(row: LayerCost) -> LayerCost:
        return replace(
            row,
            forward=longer(row.forward),
            backward=longer(row.backward),
            input_grad=longer(row.input_grad),
            weight_grad=longer(row.weight_grad),
        )

    return replace(profile, costs={key: cost(row) for key, row in profile.costs.items()})


def slowness(profile: Profile, micro: int) -> float:
    """That makes a forward and backward of one micro-batch take `SLEPT_MS`."""
    keys = [key for key in profile.settings if key.micro == micro]
    costs = [profile.cost(layer.name, keys[0]) for layer in profile.graph.layers]
    return SLEPT_MS * 1e-3 / sum(cost.forward.median + cost.backward.median for cost in costs)


def planned(every: Sequence[Case]) -> None:
    profiles: dict[str, Profile] = {}
    for case in every:
        subject = case.subject
        if subject.name not in profiles:
            workload = load(subject.workload, subject.arguments)
            profiles[subject.name] = measure.profile(workload, "cpu", micros=subject.micros, split=Split())
        costs = profiles[subject.name]
        if case.content == "sleep":
            costs = slowed(costs, slowness(costs, subject.micros[0]))
        try:
            case.plan = solve(
                Question(profile=costs, cluster=machines(case.ranks), batch=subject.batch, fix=case.fix)
            )
        except Infeasible as error:
            case.why = str(error)


def measured(every: Sequence[Case], ranks: Pool, rounds: int) -> None:
    """In rounds, each in another order."""
    for number in range(rounds):
        for case in random.Random(number).sample(list(every), len(every)):
            if case.plan is None:
                continue
            layers = case.content == "layers"
            first = layers and number == 0
            try:
                run = ranks.run(
                    case.plan,
                    steps=STEPS["layers" if layers else "sleep"],
                    content="layers" if layers else "sleep",
                    memory_step=2 if first else 0,
                )
            except PlanFailed as error:
                case.plan, case.why = None, str(error)
                continue
            case.runs.append(run)
            if first:
                case.peak_bytes = max(run.timeline.peak_bytes.values())


def held_out(case: Case, every: Sequence[Case]) -> Corrections:
    """Corrections from other runs of the same kind: other models, or the other half of the plans."""
    peers = [other for other in every if other.content == case.content and other.plan is not None]
    if case.content == "layers":
        foreign = [other for other in peers if other.subject != case.subject]
        peers = foreign or [other for other in peers if other is not case]
    else:
        half = peers.index(case) % 2
        peers = [other for number, other in enumerate(peers) if number % 2 != half]
    return fit([run for other in peers for run in other.runs])


def row(case: Case, every: Sequence[Case]) -> tuple[Cell, ...]:
    name = " ".join(f"{key}={value}" for key, value in case.fix.items())
    kind = "compute" if case.content == "layers" else "sleep"
    if case.plan is None:
        return (case.subject.name, name, kind, case.ranks, case.why.partition("\n")[0], *[None] * 9)
    plan = repredicted(case.plan, held_out(case, every))
    plain, known, step = case.plan.prediction.step_ns, plan.prediction, case.measured_ns
    most = max(worker.total - worker.margin for worker in case.plan.prediction.memory)
    return (
        case.subject.name,
        name,
        kind,
        case.ranks,
        f"{plan.batch.micros} x {plan.batch.micro}",
        plain / 1e6,
        known.step_ns / 1e6,
        step / 1e6,
        step / plain - 1,
        step / known.step_ns - 1,
        known.low_ns <= step <= known.high_ns,
        most / 2**20 if case.peak_bytes else None,
        case.peak_bytes / 2**20 if case.peak_bytes else None,
        case.peak_bytes / most - 1 if case.peak_bytes else None,
    )


COLUMNS = (
    "model",
    "decisions",
    "stages",
    "ranks",
    "micro-batches",
    "from the profile ms",
    "corrected ms",
    "measured ms",
    "profile's error",
    "error",
    "within bars",
    "predicted MiB",
    "measured MiB",
    "memory error",
)


def shown(row: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Errors as shares."""
    return tuple(
        f"{cell:+.1%}" if name.endswith("error") and isinstance(cell, float) else cell
        for name, cell in zip(COLUMNS, row, strict=True)
    )


def notes(rows: Sequence[tuple[Cell, ...]]) -> Iterator[str]:
    for kind in ("sleep", "compute"):
        found = [r for r in rows if r[2] == kind and isinstance(r[9], float)]
        for column, name in ((8, "from the profile and the link alone"), (9, "corrected by other runs")):
            errors = [abs(r[column]) for r in found if isinstance(r[column], float)]  # type: ignore[arg-type]
            if errors:
                yield (
                    f"{kind}, {name}: error {statistics.median(errors):.1%} median, {max(errors):.1%} at worst, "
                    f"of {len(errors)} plans."
                )
        if found:
            yield f"{kind}: {sum(bool(r[10]) for r in found)} of {len(found)} within their error bars."
    sizes = [r[13] for r in rows if isinstance(r[13], float)]
    if sizes:
        yield (
            f"peak memory: error {statistics.median(map(abs, sizes)):.1%} median, {max(map(abs, sizes)):.1%} at worst; "
            f"measured above predicted by {max(0.0, *sizes):.1%} at most."
        )


def missed(rows: Sequence[tuple[Cell, ...]]) -> Iterator[str]:
    """Yields what was missed of the aims, from rows as `row` makes them; step times are judged as corrected."""
    for kind, aim in STEP_AIMS.items():
        plain, known = (
            [abs(x) for r in rows if r[2] == kind and isinstance(x := r[n], float)] for n in (8, 9)
        )
        if known and statistics.median(known) > aim:
            yield (
                f"Step time of plans that {kind} was {statistics.median(known):.1%} off in the median once corrected "
                f"({statistics.median(plain):.1%} from the profile alone), and the aim is {aim:.0%}."
            )
    sizes = [abs(x) for r in rows if isinstance(x := r[13], float)]
    over = sum(size > MEMORY_AIM for size in sizes)
    if over:
        yield (
            f"Peak memory was {max(sizes):.1%} off at worst and {statistics.median(sizes):.1%} in the median; {over} of "
            f"{len(sizes)} plans miss the aim of {MEMORY_AIM:.0%}."
        )


def run(quick: bool) -> Result:
    every = list(cases(quick))
    before = os.getloadavg()[0]
    planned(every)
    with pool() as ranks:
        measured(every, ranks, 1 if quick else ROUNDS)
    rows = [row(case, every) for case in every]
    found = next(case for case in every if case.content == "layers" and case.plan)
    load_note = f"Load average {before:.1f} before, {os.getloadavg()[0]:.1f} at the end; the ranks' own is 2."
    corrections = (
        f"Corrections of {found.subject.name}, from the other models: {_shown(held_out(found, every))}."
    )
    return Result(
        name="fidelity",
        claim="Step time within 10 % (median) where stages compute, 5 % where they sleep; memory within 3 %.",
        missed=tuple(missed(rows)),
        tables=[
            Table(
                title="Predicted against measured",
                columns=COLUMNS,
                rows=[shown(row) for row in rows],
                notes=(*notes(rows), corrections, load_note),
            )
        ],
    )


def _shown(fitted: Corrections) -> str:
    names = ("forward", "backward", "input_grad", "weight_grad", "update", "hop", "sum")
    rows = {name: getattr(fitted, name) for name in names}
    return "; ".join(
        f"{name} {row.start_s * 1e6:.0f} µs + {row.factor:.3g}"
        for name, row in rows.items()
        if row is not None
    )


if __name__ == "__main__":
    main(run)
