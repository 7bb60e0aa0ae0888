"""Plans the same training for more devices or larger batches: what each buys, and from where on it buys little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from planner.errors import BadInput
from planner.explore.frontier import peak_bytes, samples_per_s
from planner.kept import KeptEntries
from planner.milp import Question, changed, solve_or_none
from planner.plan import Plan, schedule_of, world_size
from planner.schedule import Kind

HALF = 0.5  # share of its speed that a device added before the knee brings at least
NEAR_BEST = 0.95  # share of the highest rate that the batch at the knee reaches
EFFICIENT = 0.8
_LITTLE = 1.02  # a doubled batch that gains less, twice in a row, ends the doubling
_MOST_DOUBLINGS = 16
MOST_MICROS = 256  # micro-batches of a replica and step that end the doubling: orders get long, few need more


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The part of a question that may be asked several times over: batches, devices, limits."""

    batches: tuple[int, ...]  # empty: as many as gain something
    devices: tuple[int, ...]  # empty: all there are
    frontier: bool
    shares: tuple[float, ...] = ()  # of pruned weights that are kept, where there are several to compare

    @property
    def single(self) -> bool:
        """Returns whether one plan answers."""
        several = max(len(self.devices), len(self.shares)) > 1
        return not (self.frontier or several) and len(self.batches) == 1

    @property
    def what(self) -> str:
        """Returns the word for the answer, of which its file is named."""
        if self.single:
            return "plan"
        if self.frontier or self.shares:
            return "frontier" if self.frontier else "kept"
        return "devices" if len(self.devices) > 1 else "batch"


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """The fastest plan for so many devices at most, samples a step, or kept entries; None where nothing fits."""

    asked: float  # a count of devices or samples, or the share of pruned weights that is kept
    plan: Plan | None

    @property
    def devices(self) -> int:
        """Returns how many devices the plan uses, 0 without a plan."""
        return world_size(self.plan.axes) if self.plan else 0

    @property
    def samples_per_s(self) -> float:
        """Returns the samples trained in a second, 0 without a plan."""
        return samples_per_s(self.plan) if self.plan else 0.0

    @property
    def micros(self) -> int:
        """Returns the micro-batches of a replica in a step, 0 without a plan."""
        return self.plan.batch.micros if self.plan else 0

    @property
    def peak_bytes(self) -> int:
        """Returns the peak of the fullest device in bytes, without the margin; 0 without a plan."""
        return peak_bytes(self.plan) if self.plan else 0

    @property
    def device_hours(self) -> float:
        """Returns the device hours that a million samples take, 0 without a plan."""
        return self.devices * 1e6 / self.samples_per_s / 3600 if self.plan else 0.0


@dataclass(frozen=True, kw_only=True)
class Lemma:
    """The law of how far more devices help: all but computing takes `ratio` times what computing takes on one device.

    If that stays so, G devices are (1 + R) / (1/G + R) times as fast as one.
    """

    ratio: float
    devices: int  # number of devices of the plan that it was found on

    def speed_up(self, devices: int) -> float:
        """Returns how many times as fast as one device so many devices are.

        Args: `devices` is at least 1.
        Returns: (1 + R) / (1/G + R).
        """
        return (1 + self.ratio) / (1 / devices + self.ratio)

    @property
    def limit(self) -> float:
        """Returns the speed-up that no number of devices exceeds; infinite where nothing but computing takes time."""
        return (1 + self.ratio) / self.ratio if self.ratio else float("inf")

    def efficient_devices(self, efficiency: float = EFFICIENT) -> float:
        """Returns the largest number of devices at which each brings this share of its speed.

        Args: `efficiency` is the speed-up over the number of devices.
        Returns: a real number; infinite where nothing but computing takes time.
        """
        return ((1 + self.ratio) / efficiency - 1) / self.ratio if self.ratio else float("inf")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The rows of a sweep over devices, batches or shares that are kept, and its knee."""

    over: Literal["devices", "batch", "kept"]
    rows: tuple[ScalingRow, ...]
    knee: float | None  # as asked; None where nothing fits
    lemma: Lemma | None = None

    def row(self, asked: float) -> ScalingRow:
        """Returns the row that was asked for.

        Args: `asked` is a number of devices, a batch or a share of this sweep.
        Raises: StopIteration where the sweep does not have it.
        """
        return next(row for row in self.rows if row.asked == asked)


def _so_far(rows: Iterator[ScalingRow]) -> list[ScalingRow]:
    """Returns all rows, or those before Ctrl-C where they have a plan."""
    found: list[ScalingRow] = []
    try:
        for row in rows:
            found.append(row)
    except KeyboardInterrupt:
        if all(row.plan is None for row in found):
            raise
    return found


def over_devices(question: Question, counts: Sequence[int]) -> Sweep:
    """Solves the question for at most so many devices, for each of `counts`.

    Returns: a row for each distinct count, the least first; a count that no plan fills is used in part.
    Raises: BadInput where the question does not match its profile.
    """
    instance = question.instance()

    def row(count: int) -> ScalingRow:
        limited = changed(instance, pins=replace(instance.pins, devices=count))
        return ScalingRow(asked=count, plan=solve_or_none(limited, question.effort))

    rows = _so_far(map(row, sorted(set(counts))))
    found = [row for row in rows if row.plan is not None]
    lemma = overhead(max(found, key=lambda row: row.devices).plan) if found else None
    return Sweep(over="devices", rows=tuple(rows), knee=knee_of_devices(found), lemma=lemma)


def over_batches(question: Question, batches: Sequence[int] | None = None) -> Sweep:
    """Solves the question for other global batches; its own batch does not count.

    Args: `batches` in samples; None doubles the least batch until that gains little, or until a step has very many
    micro-batches.
    Returns: a row for each distinct batch, the least first.
    Raises: BadInput where the question does not match its profile.
    """
    rows = _so_far(_rows(question, batches))
    found = [row for row in rows if row.plan is not None]
    return Sweep(over="batch", rows=tuple(rows), knee=first_near_best(found))


def _rows(question: Question, batches: Sequence[int] | None) -> Iterator[ScalingRow]:
    if batches is not None:
        yield from (_row(question, batch) for batch in sorted(set(batches)))
        return
    micros = question.replace(batch=1).instance().micros()
    if not micros:
        raise BadInput("no micro-batch was profiled at every layer", where="profile")
    batch, before, idle = min(micros), 0.0, 0
    for _ in range(_MOST_DOUBLINGS):
        row = _row(question, batch)
        yield row
        idle = idle + 1 if row.samples_per_s < before * _LITTLE else 0
        before = max(before, row.samples_per_s)
        if (before and idle == 2) or row.micros >= MOST_MICROS:
            return
        batch *= 2


def _row(question: Question, batch: int) -> ScalingRow:
    instance = question.replace(batch=batch).instance()
    return ScalingRow(asked=batch, plan=solve_or_none(instance, question.effort))


def over_kept(question: Question, shares: Sequence[float]) -> Sweep:
    """Solves the question for weights of which such shares are kept.

    Returns: a row for each distinct share, the largest first.
    Raises: BadInput where the question does not match its profile.
    """

    def row(share: float) -> ScalingRow:
        kept = KeptEntries.of_share(question.profile.graph, share)
        pruned = replace(question, profile=replace(question.profile, kept=kept))
        return ScalingRow(asked=share, plan=solve_or_none(pruned.instance(), question.effort))

    rows = _so_far(map(row, sorted(set(shares), reverse=True)))
    found = [row for row in rows if row.plan is not None]
    return Sweep(over="kept", rows=tuple(rows), knee=first_near_best(found))


def knee_of_devices(rows: Sequence[ScalingRow]) -> float | None:
    """Returns the last count up to which every device added brought at least half of its share.

    Args: `rows` with plans, the smallest count first.
    Returns: a count as asked; None without rows.
    """
    if not rows:
        return None
    for before, row in pairwise(rows):
        more = row.asked / before.asked - 1
        if row.samples_per_s / before.samples_per_s - 1 < HALF * more:
            return before.asked
    return rows[-1].asked


def first_near_best(rows: Sequence[ScalingRow]) -> float | None:
    """Returns the first batch or share that comes near the highest rate of samples.

    Args: `rows` with plans, in the order of what a user would rather have.
    Returns: a batch or a share as asked; None without rows.
    """
    best = max((row.samples_per_s for row in rows), default=0.0)
    return next((row.asked for row in rows if row.samples_per_s >= NEAR_BEST * best), None)


def overhead(plan: Plan | None) -> Lemma | None:
    """Returns how far more devices than this plan's would help.

    Args: `plan` may be None, where nothing fits.
    Returns: the lemma of its computing and idle time; None without a plan or without computing.
    """
    if plan is None:
        return None
    busy_ns, devices = computing_ns(plan), world_size(plan.axes)
    wasted_ns = max(0.0, plan.prediction.step_ns - busy_ns)
    return Lemma(ratio=wasted_ns / (busy_ns * devices), devices=devices) if busy_ns else None


def computing_ns(plan: Plan) -> float:
    """Returns the nanoseconds of a step that a device spends computing, on average over the workers.

    Args: `plan` with its orders and the times of its stages.
    Returns: forward, backward and recomputation; messages, gradient sums and updates do not count.
    """
    took = {
        Kind.F: [t.forward_ns for t in plan.times],
        Kind.B: [t.backward_ns for t in plan.times],
        Kind.I: [t.input_grad_ns for t in plan.times],
        Kind.W: [t.weight_grad_ns for t in plan.times],
        Kind.R: [t.recompute_ns for t in plan.times],
    }
    orders = schedule_of(plan).orders
    return sum(took[a.kind][a.stage] for order in orders for a in order if a.kind in took) / len(orders)
