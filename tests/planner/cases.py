"""Schedules with random costs for the tests of the simulator, the lowering and the checker."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.plan import Hop, StageTimes
from planner.schedule import FAMILIES, Overlap, Schedule, Updates, generate, overlapped
from planner.simulate import Compiled, compile, duration_vector


@dataclass(frozen=True, kw_only=True)
class Case:
    schedule: Schedule
    hops: tuple[Hop, ...]
    times: tuple[StageTimes, ...]

    @property
    def vector(self) -> IntArray:
        return duration_vector(self.times, self.hops)

    def compiled(self, **options: object) -> Compiled:
        return compile(self.schedule, self.hops, **options)  # type: ignore[arg-type]


def stage_times(
    stages: int, *, f: int = 1, b: int = 2, i: int = 1, w: int = 1, **others: int
) -> tuple[StageTimes, ...]:
    one = StageTimes(forward_ns=f, backward_ns=b, input_grad_ns=i, weight_grad_ns=w, **others)
    return (one,) * stages


def random_hops(stages: int, draw: Random, *, highest: int = 9, skips: int = 2) -> tuple[Hop, ...]:
    """A chain both ways, and some Values that skip stages: their gradients go from consumer to consumer."""
    edges = {("act", s, s + 1) for s in range(stages - 1)} | {("grad", s + 1, s) for s in range(stages - 1)}
    for _ in range(draw.randint(0, skips) if stages > 2 else 0):
        source, target = sorted(draw.sample(range(stages), 2))
        edges |= {("act", source, target), ("grad", target, source)}
    return tuple(
        Hop(direction=d, sender=a, receiver=b, values=(), bytes=0, ns=draw.randint(0, highest))
        for d, a, b in sorted(edges)
    )


def random_times(stages: int, draw: Random, *, lowest: int = 0, highest: int = 9) -> tuple[StageTimes, ...]:
    names = list(StageTimes.model_fields)
    return tuple(StageTimes(**{n: draw.randint(lowest, highest) for n in names}) for _ in range(stages))


def nearest(family: str, workers: int, micros: int, random: Random) -> Schedule:
    """A schedule of the family, of about that size: some want an even depth, others many micro-batches."""
    pairs = 2 if FAMILIES[family].paired and workers % 4 == 0 and random.random() < 0.5 else 1
    for even in (workers, workers + workers % 2):
        for more in (micros, micros + -micros % workers, micros + 2 * workers):
            try:
                return generate(family, workers=even, micros=more, pairs=pairs)
            except BadInput:
                continue
    raise AssertionError(f"no {family} of about {workers} workers and {micros} micro-batches")


def random_overlap(schedule: Schedule, draw: Random, *, updates: Updates = "at_end") -> Overlap:
    parts = draw.choice((1, 1, 2, 3))
    every = list(range(schedule.stages * parts))
    draw.shuffle(every)
    sums = tuple(every) if draw.random() < 0.5 else ()
    return Overlap(parts=parts, late=draw.randint(0, 3), sums=sums, updates=updates)


@st.composite
def cases(draw: st.DrawFn, *, most_workers: int = 6, most_micros: int = 9, lowest: int = 0) -> Case:
    workers = draw(st.integers(2, most_workers))
    micros = draw(st.integers(1, most_micros))
    random = Random(draw(st.integers(0, 10**6)))
    family = random.choice(sorted(FAMILIES))  # drawn by hypothesis, some families would hardly ever come
    schedule = nearest(family, workers, micros, random)
    if random.random() < 0.3:
        schedule = overlapped(schedule, random_overlap(schedule, random))
    stages = schedule.stages
    return Case(
        schedule=schedule,
        hops=random_hops(stages, random),
        times=random_times(stages, random, lowest=lowest),
    )
