"""Times the passes of layers in rounds over all of them, so that noise falls on all alike.

Every layer is visited several times, minutes apart where there are many layers, because a machine drifts. Results are
medians of all rounds. Their spread is half the distance between the quartiles, or how far the median of one visit
lies from that of all, whichever is more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset

from planner.arrays import NS_PER_S
from planner.measure.passes import Apart, Specimen, forget_gradients, gradients_of, roots_of, whole_backward
from planner.profile import SampleCost, Seconds
from planner.workload import Workload, has_raw

T = TypeVar("T")


class Visit(NamedTuple):
    """How thoroughly layers are timed at one visit."""

    warm_up_rounds: int
    min_rounds: int
    max_rounds: int
    share: float  # of the time for all visits


VISITS = (Visit(2, 3, 30, 0.5), Visit(1, 1, 15, 0.25), Visit(1, 1, 15, 0.25))
MOST_SAMPLES, SAMPLES_S = 32, 2.0  # that are read to time them, and how long at most
_INSTANT_S = 1 / NS_PER_S  # plans count in whole nanoseconds


class Clock(Protocol):
    """A clock that times one action on one kind of device."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        """Runs an action and returns how long it took and what it gave.

        Args: `action` is called once.
        Returns: seconds, and the action's result.
        """


class CpuClock:
    """A clock of wall time. With several threads on a busy machine it counts what other processes take as well."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start = time.perf_counter_ns()
        result = action()
        return (time.perf_counter_ns() - start) * 1e-9, result


class ProcessorClock:
    """A clock of the processor time of this process, which other processes do not change; for a single thread."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start = time.process_time_ns()
        result = action()
        return (time.process_time_ns() - start) * 1e-9, result


class CudaClock:
    """A clock of the time between two events on the device.

    The host waits before and after, so nothing else is counted.
    """

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start, end = _event(), _event()
        torch.cuda.synchronize()
        start.record()
        result = action()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3, result


def clock_of(device: str) -> Clock:
    """Returns the clock for a device: events on a GPU, processor time for a single thread, else wall time.

    Args: `device` is a torch device, such as cuda:0.
    """
    if torch.device(device).type == "cuda":
        return CudaClock()
    return ProcessorClock() if torch.get_num_threads() == 1 else CpuClock()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


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
        seconds, outputs = clock.time(specimen.outputs)
        row.forward.append(seconds)
        live.append(roots_of(outputs))
    del outputs
    for specimen, row in reversed(rows):
        row.backward.append(_time_whole(specimen, live.pop(), clock))
    _time_halves([row for row in rows if row[0].has_halves], clock)


def _time_whole(specimen: Specimen, roots: Sequence[Tensor], clock: Clock) -> float:
    gradients = gradients_of(roots)
    seconds, _ = clock.time(lambda: whole_backward(specimen, roots, gradients))
    forget_gradients(specimen)
    return seconds


def _time_halves(rows: Sequence[tuple[Specimen, Samples]], clock: Clock) -> None:
    live = [roots_of(specimen.outputs(specimen.halves.forward)) for specimen, _ in rows]
    for specimen, row in reversed(rows):
        input_s, halfway = _time_input_half(specimen, live.pop(), clock)
        weight_s, _ = clock.time(lambda: specimen.weight_half(halfway))  # noqa: B023
        row.input_half.append(input_s)
        row.weight_half.append(weight_s)
        forget_gradients(specimen)


def _time_input_half(specimen: Specimen, roots: Sequence[Tensor], clock: Clock) -> tuple[float, object]:
    gradients = gradients_of(roots)
    return clock.time(lambda: specimen.input_half(roots, gradients))


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
    """Times reading and joining samples of a dataset in this process. The first sample, which opens files, is left out.

    Returns: None for synthetic samples, and for a dataset that is read by regions.
    """
    data: Any = workload.dataset()
    if data is None or getattr(data, "regions", False) is True:
        return None
    cold, warm, finish, samples = list[float](), list[float](), list[float](), list[object]()
    every = iter(data) if isinstance(data, IterableDataset) else None
    clock, begun = CpuClock(), time.monotonic()
    for index in range(0, len(data), max(1, len(data) // MOST_SAMPLES))[:MOST_SAMPLES]:
        read = partial(next, every) if every is not None else partial(data.__getitem__, index)
        took_s, sample = clock.time(read)
        cold.append(took_s)
        warm.append(took_s if every is not None else clock.time(read)[0])
        if has_raw(data):
            finish.append(clock.time(partial(data.finish, data.raw(index)))[0])
        samples.append(sample)
        if time.monotonic() - begun > SAMPLES_S:
            break
    joined = [clock.time(partial(workload.collate, samples)) for _ in range(3)]
    collate_s, batch = min(took_s for took_s, _ in joined), joined[0][1]
    leaves = [x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor)]
    return SampleCost(
        cold_s=statistics.fmean(cold[1:] or cold),
        warm_s=statistics.fmean(warm[1:] or warm),
        collate_s=collate_s / len(samples),
        sample_bytes=sum(x.nbytes for x in leaves) // len(samples),
        finish_s=statistics.fmean(finish[1:] or finish) if finish else 0.0,
    )
