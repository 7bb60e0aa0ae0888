"""Times the passes of layers in rounds over all of them, so that noise falls on all alike.

Every layer is visited several times, minutes apart where there are many layers, because a machine drifts. Results are
medians of all rounds. Their spread is half the distance between the quartiles, or how far the median of one visit
lies from that of all, whichever is more.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from planner.arrays import NS_PER_S
from planner.errors import BadInput
from planner.measure.passes import (
    Apart,
    Clock,
    CpuClock,
    Specimen,
    forget_gradients,
    gradients_of,
    roots_of,
    whole_backward,
)
from planner.profile import SampleCost, Seconds
from planner.workload import Workload, has_raw, reseed, spared


class Visit(NamedTuple):
    """How thoroughly layers are timed at one visit."""

    warm_up_rounds: int
    min_rounds: int
    max_rounds: int
    share: float  # of the time for all visits


VISITS = (Visit(2, 3, 30, 0.5), Visit(1, 1, 15, 0.25), Visit(1, 1, 15, 0.25))
MOST_SAMPLES, SAMPLES_S = 32, 2.0  # that are read to time them, and how long at most
JOINED = (1, 5)  # samples of the batches that they are joined to
_INSTANT_S = 1 / NS_PER_S  # plans count in whole nanoseconds


@dataclass(slots=True)
class Samples:
    """The seconds that the passes of one layer took at one visit, one a round."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    input_half: list[float] = field(default_factory=list)
    weight_half: list[float] = field(default_factory=list)

    def forget(self) -> None:
        for samples in (self.forward, self.backward, self.input_half, self.weight_half):
            samples.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """The seconds of the four passes of one layer, as a profile has them."""

    forward: Seconds
    backward: Seconds
    input_grad: Seconds
    weight_grad: Seconds


def time_rounds(
    specimens: Sequence[Specimen],
    samples: Sequence[Samples],
    clock: Clock,
    budget_s: float,
    visit: Visit,
) -> Iterator[float]:
    """Times rounds over all specimens: some to warm up, the least of the visit, then until the budget is spent.

    Args: `samples` has one row a specimen, which is filled in; `budget_s` is for all specimens together, and for
        this visit.
    Yields: after every round the share that is done, from 0 to 1.
    """
    for _ in range(visit.warm_up_rounds):
        time_round(specimens, samples, clock)
        yield 0.0
    for row in samples:
        row.forget()
    begun = time.perf_counter()
    for done in range(1, visit.max_rounds + 1):
        time_round(specimens, samples, clock)
        spent = (time.perf_counter() - begun) / budget_s
        yield min(1.0, max(spent, done / visit.max_rounds))
        if done >= visit.min_rounds and spent > 1:
            return


def time_round(specimens: Sequence[Specimen], samples: Sequence[Samples], clock: Clock) -> None:
    """Times one round: all forwards, then the backwards from the last specimen to the first, as in a step.

    What the forwards save stays until the backwards, so that memory and caches are in the state that a step meets.

    Args: `samples` has one row a specimen, to which this round is added.
    """
    rows = list(zip(specimens, samples, strict=True))
    live = []
    for specimen, row in rows:
        outputs = clock.time(specimen.outputs, row.forward)
        live.append(roots_of(outputs))
    del outputs
    for specimen, row in reversed(rows):
        _time_whole(specimen, live.pop(), clock, row.backward)
    _time_halves([row for row in rows if row[0].has_halves], clock)
    clock.settle()


def _time_whole(specimen: Specimen, roots: Sequence[Tensor], clock: Clock, into: list[float]) -> None:
    gradients = gradients_of(roots)
    clock.time(lambda: whole_backward(specimen, roots, gradients), into)
    forget_gradients(specimen)


def _time_halves(rows: Sequence[tuple[Specimen, Samples]], clock: Clock) -> None:
    live = [roots_of(specimen.outputs(specimen.halves.forward)) for specimen, _ in rows]
    for specimen, row in reversed(rows):
        halfway = _time_input_half(specimen, live.pop(), clock, row.input_half)
        clock.time(lambda: specimen.weight_half(halfway), row.weight_half)  # noqa: B023
        forget_gradients(specimen)


def _time_input_half(specimen: Specimen, roots: Sequence[Tensor], clock: Clock, into: list[float]) -> object:
    gradients = gradients_of(roots)
    return clock.time(lambda: specimen.input_half(roots, gradients), into)


def pass_times(specimen: Specimen, visits: Sequence[Samples]) -> PassTimes:
    """Returns the times of a layer's passes from the rounds of all visits so far.

    Args: `specimen` tells which passes there are.
    """
    forward, whole = spread_of(*(v.forward for v in visits)), spread_of(*(v.backward for v in visits))
    halves = spread_of(*(v.input_half for v in visits)), spread_of(*(v.weight_half for v in visits))
    return with_halves(specimen, forward, whole, halves)


def with_halves(
    specimen: Specimen, forward: Seconds, whole: Seconds, halves: tuple[Seconds, Seconds]
) -> PassTimes:
    """Returns the times of all four passes from those of forward, whole backward and halves.

    A pass that exists takes a nanosecond at least, the least that a plan can say. Views are no work, and neither is
    the backward of parameters from which nothing differentiable is made.

    Args: `halves` are input and weight half; they are read only where the specimen has both.
    """
    forward = _no_instant(forward)
    if specimen.trainable:
        whole = _no_instant(whole)
    nothing = Seconds(median=0.0)
    if not specimen.has_halves:
        halves = (whole, nothing) if specimen.differentiable_inputs else (nothing, whole)
    elif isinstance(specimen.halves, Apart):
        halves = shared_out(whole, *halves)
    if specimen.has_halves and halves[0].median + halves[1].median < _INSTANT_S:
        halves = _no_instant(halves[0]), halves[1]
    return PassTimes(forward=forward, backward=whole, input_grad=halves[0], weight_grad=halves[1])


def _no_instant(time: Seconds) -> Seconds:
    return time if time.median >= _INSTANT_S else replace(time, median=_INSTANT_S)


def shared_out(whole_: Seconds, first: Seconds, second: Seconds) -> tuple[Seconds, Seconds]:
    """Divides the whole backward in the proportion of its halves.

    Each half was timed with the operations that both share, so that they add up to more than the whole.

    Args: `whole_` is the backward in one pass, `first` and `second` are its halves.
    Returns: the two halves, which add up to the whole.
    """
    total = first.median + second.median
    scale = whole_.median / total if total else 0.0
    return _scaled(first, scale), _scaled(second, scale)


def _scaled(value: Seconds, factor: float) -> Seconds:
    return Seconds(median=value.median * factor, spread=value.spread * factor)


def spread_of(*visits: Sequence[float]) -> Seconds:
    """Returns the median of all samples, and how far another measurement may lie from it.

    The spread is half the distance between the quartiles, or the largest distance of a visit's median from that of
    all.

    Args: `visits` hold seconds; a single sample has spread 0, none at all are 0 seconds.
    """
    samples = [x for visit in visits for x in visit]
    if len(samples) < 2:
        return Seconds(median=samples[0] if samples else 0.0)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    drift = max(abs(statistics.median(visit) - middle) for visit in visits if visit)
    return Seconds(median=middle, spread=max((high - low) / 2, drift))


def sample_cost(workload: Workload) -> SampleCost | None:
    """Times reading and joining samples of a dataset in this process, by a DataLoader as a rank reads.

    Seeds and generators are counted, which a processor that has waited for a sample is far slower at. The first sample
    opens files, so that it and its batch are left out.

    Returns: None for synthetic samples, and for a dataset that is read by regions.
    Raises: BadInput where the dataset has no samples.
    """
    data: Any = workload.dataset()
    if data is None or getattr(data, "regions", False) is True:
        return None
    if not len(data):
        raise BadInput("dataset() has no samples", where=workload.where)
    samples = _TimedSamples(data, iter(data) if isinstance(data, IterableDataset) else None)
    every = list(range(0, len(data), max(1, len(data) // MOST_SAMPLES))[:MOST_SAMPLES])
    groups = [every[first : first + size] for first, size in _groups(len(every))]
    batches = iter(DataLoader(samples, batch_sampler=groups, collate_fn=workload.collate))
    warm, finish, around = list[float](), list[float](), {size: list[float]() for size in JOINED}
    clock, begun, nbytes = CpuClock(), time.monotonic(), 0
    for group in groups:
        spent_s = sum(samples.cold)
        whole_s = list[float]()
        batch = clock.time(partial(_drawn, batches), whole_s)
        around.setdefault(len(group), []).append(whole_s[0] - (sum(samples.cold) - spent_s))
        nbytes = sum(x.nbytes for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)) // len(group)
        for index in group if samples.every is None else ():
            clock.time(partial(data.__getitem__, index), warm)
            if has_raw(data):
                clock.time(partial(data.finish, data.raw(index)), finish)
        if time.monotonic() - begun > SAMPLES_S:
            break
    each_s, batch_s = _joining(around)
    return SampleCost(
        cold_s=statistics.fmean(samples.cold[1:] or samples.cold),
        warm_s=statistics.fmean(warm[1:] or warm or samples.cold),
        collate_s=each_s,
        sample_bytes=nbytes,
        finish_s=statistics.fmean(finish[1:] or finish) if finish else 0.0,
        batch_s=batch_s,
    )


def _groups(count: int) -> Iterator[tuple[int, int]]:
    """Yields first sample and size of batches: three of one sample, then a larger one, and so on."""
    first = 0
    for number in itertools.count():
        if first >= count:
            return
        size = min(JOINED[number % 4 == 3], count - first)
        yield first, size
        first += size


def _drawn(batches: Iterator[object]) -> object:
    with spared():
        return next(batches)


def _joining(around: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Returns what is done around reading, in seconds: for each sample, and for each batch whatever its size.

    Args: `around` has that time for batches of each size, of which the very first is left out.
    """
    one, many = JOINED
    single = statistics.median(around[one][1:] or around[one])
    if not around[many]:
        return single, 0.0
    each = min(single, max(_INSTANT_S, (statistics.median(around[many]) - single) / (many - one)))
    return each, single - each


class _TimedSamples(Dataset[object]):
    """The samples of a dataset, each drawn under a seed of its own, with the seconds that each took."""

    def __init__(self, data: Any, every: Iterator[object] | None) -> None:
        self._data, self.every = data, every
        self.cold: list[float] = []

    def __getitem__(self, index: int) -> object:
        return CpuClock().time(partial(self._read, index), self.cold)

    def _read(self, index: int) -> object:
        reseed(index)
        return next(self.every) if self.every is not None else self._data[index]
