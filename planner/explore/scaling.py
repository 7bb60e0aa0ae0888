"""Plans the same training on more devices or with larger batches, and finds from where on more buys little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from planner.cluster import Cluster
from planner.errors import BadInput
from planner.explore.frontier import peak_bytes, samples_per_s
from planner.milp import Asked, changed, solve_or_none
from planner.plan import Plan, schedule_of, world_size
from planner.profile import Profile
from planner.schedule import Kind

HALF = 0.5  # of its share in speed, that a device added before the knee brings at least
NEAR_BEST = 0.95  # of the highest rate, that the batch at the knee reaches
EFFICIENT = 0.8
_LITTLE = 1.02  # a doubled batch that gains less, twice in a row, ends the doubling
_MOST_DOUBLINGS = 16
MOST_MICROS = (
    256  # of a group and step, which end the doubling: orders get long, and few train on such batches
)


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """The fastest plan for so many devices at most, or so many samples a step; None where nothing fits."""

    asked: int
    plan: Plan | None

    @property
    def devices(self) -> int:
        return world_size(self.plan.axes) if self.plan else 0

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.plan) if self.plan else 0.0

    @property
    def micros(self) -> int:
        return self.plan.batch.micros if self.plan else 0

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.plan) if self.plan else 0

    @property
    def device_hours(self) -> float:
        """Returns the hours of all devices together for a million samples."""
        return self.devices * 1e6 / self.samples_per_s / 3600 if self.plan else 0.0


@dataclass(frozen=True, kw_only=True)
class Lemma:
    """The overhead of a plan: everything but computing takes `ratio` times the computing of one device."""

    ratio: float
    devices: int  # on which it was found

    def speed_up(self, devices: int) -> float:
        return (1 + self.ratio) / (1 / devices + self.ratio)

    @property
    def limit(self) -> float:
        """Returns how many times as fast as one any number of devices can be."""
        return (1 + self.ratio) / self.ratio if self.ratio else float("inf")

    def efficient_devices(self, efficiency: float = EFFICIENT) -> float:
        """Returns the number of devices up to which each brings a share of its speed."""
        return ((1 + self.ratio) / efficiency - 1) / self.ratio if self.ratio else float("inf")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    over: Literal["devices", "batch"]
    rows: tuple[ScalingRow, ...]
    knee: int | None  # as asked; None where nothing fits
    lemma: Lemma | None = None

    def row(self, asked: int) -> ScalingRow:
        return next(row for row in self.rows if row.asked == asked)


def over_devices(
    profile: Profile, cluster: Cluster, batch: int, devices: Sequence[int], asked: Asked | None = None
) -> Sweep:
    """The fastest plan on at most so many devices, for each count; a count that no plan fills is used in part."""
    asked = asked or Asked()
    space = asked.space(profile, cluster, batch)
    rows = []
    for count in sorted(set(devices)):
        pinned = replace(space.pins, devices=count)
        rows.append(ScalingRow(asked=count, plan=solve_or_none(changed(space, pins=pinned), asked.effort)))
    found = [row for row in rows if row.plan is not None]
    lemma = overhead(max(found, key=lambda row: row.devices).plan) if found else None
    return Sweep(over="devices", rows=tuple(rows), knee=knee_of_devices(found), lemma=lemma)


def over_batches(
    profile: Profile,
    cluster: Cluster,
    batches: Sequence[int] | None = None,
    asked: Asked | None = None,
) -> Sweep:
    """The fastest plan for each global batch; by default for the least one doubled until that gains little, or until
    a step has very many micro-batches."""
    asked = asked or Asked()
    rows = list(_rows(profile, cluster, batches, asked))
    found = [row for row in rows if row.plan is not None]
    return Sweep(over="batch", rows=tuple(rows), knee=knee_of_batches(found))


def _rows(
    profile: Profile, cluster: Cluster, batches: Sequence[int] | None, asked: Asked
) -> Iterator[ScalingRow]:
    if batches is not None:
        for batch in sorted(set(batches)):
            yield ScalingRow(
                asked=batch, plan=solve_or_none(asked.space(profile, cluster, batch), asked.effort)
            )
        return
    micros = asked.space(profile, cluster, 1).micros()
    if not micros:
        raise BadInput("no micro-batch was profiled at every layer", where="profile")
    batch, before, idle = min(micros), 0.0, 0
    for _ in range(_MOST_DOUBLINGS):
        row = ScalingRow(asked=batch, plan=solve_or_none(asked.space(profile, cluster, batch), asked.effort))
        yield row
        idle = idle + 1 if row.samples_per_s < before * _LITTLE else 0
        before = max(before, row.samples_per_s)
        if (before and idle == 2) or row.micros >= MOST_MICROS:
            return
        batch *= 2


def knee_of_devices(rows: Sequence[ScalingRow]) -> int | None:
    """The last count up to which every device added brought at least half of its share."""
    if not rows:
        return None
    for before, row in pairwise(rows):
        more = row.asked / before.asked - 1
        if row.samples_per_s / before.samples_per_s - 1 < HALF * more:
            return before.asked
    return rows[-1].asked


def knee_of_batches(rows: Sequence[ScalingRow]) -> int | None:
    """The least batch that comes near the highest rate of samples."""
    best = max((row.samples_per_s for row in rows), default=0.0)
    return next((row.asked for row in rows if row.samples_per_s >= NEAR_BEST * best), None)


def overhead(plan: Plan | None) -> Lemma | None:
    if plan is None:
        return None
    busy_ns, devices = computing_ns(plan), world_size(plan.axes)
    wasted_ns = max(0.0, plan.prediction.step_ns - busy_ns)
    return Lemma(ratio=wasted_ns / (busy_ns * devices), devices=devices) if busy_ns else None


def computing_ns(plan: Plan) -> float:
    """Of a step, what a device spends computing, on average over them."""
    took = {
        Kind.F: [t.forward_ns for t in plan.times],
        Kind.B: [t.backward_ns for t in plan.times],
        Kind.I: [t.input_grad_ns for t in plan.times],
        Kind.W: [t.weight_grad_ns for t in plan.times],
        Kind.R: [t.recompute_ns for t in plan.times],
    }
    orders = schedule_of(plan).orders
    return sum(took[a.kind][a.stage] for order in orders for a in order if a.kind in took) / len(orders)
