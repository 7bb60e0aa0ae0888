"""Times of the passes of layers: rounds over all of them, so that noise falls on all alike, medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from planner.arrays import NS_PER_S
from planner.measure.passes import Apart, Specimen, forget_gradients, gradients_of, roots_of, whole_backward
from planner.profile import Seconds

T = TypeVar("T")

WARM_UP_ROUNDS = 2
MIN_ROUNDS = 5
MAX_ROUNDS = 60
_INSTANT_S = 1 / NS_PER_S  # plans count in whole nanoseconds


class Clock(Protocol):
    def time(self, action: Callable[[], T]) -> tuple[float, T]: ...


class CpuClock:
    """Time that passes, which with several threads on a busy machine is not theirs alone."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start = time.perf_counter_ns()
        result = action()
        return (time.perf_counter_ns() - start) * 1e-9, result


class ProcessorClock:
    """What the processor spends on this process: of a single thread its time, whoever else wants the processor."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start = time.process_time_ns()
        result = action()
        return (time.process_time_ns() - start) * 1e-9, result


class CudaClock:
    """Time between two events on the device; the host waits before and after, so nothing else is counted."""

    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start, end = _event(), _event()
        torch.cuda.synchronize()
        start.record()
        result = action()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3, result


def clock_of(device: str) -> Clock:
    if torch.device(device).type == "cuda":
        return CudaClock()
    return ProcessorClock() if torch.get_num_threads() == 1 else CpuClock()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class Samples:
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    input_half: list[float] = field(default_factory=list)
    weight_half: list[float] = field(default_factory=list)

    def forget(self) -> None:
        for samples in (self.forward, self.backward, self.input_half, self.weight_half):
            samples.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    forward: Seconds
    backward: Seconds
    input_grad: Seconds
    weight_grad: Seconds


def time_rounds(
    specimens: Sequence[Specimen],
    samples: Sequence[Samples],
    clock: Clock,
    budget_s: float,
) -> Iterator[float]:
    """Fills in one Samples a specimen, and gives the share that is done after every round: at least MIN_ROUNDS of
    them, then until the budget is spent."""
    for _ in range(WARM_UP_ROUNDS):
        time_round(specimens, samples, clock)
        yield 0.0
    for row in samples:
        row.forget()
    begun = time.perf_counter()
    for done in range(1, MAX_ROUNDS + 1):
        time_round(specimens, samples, clock)
        spent = (time.perf_counter() - begun) / budget_s
        yield min(1.0, max(spent, done / MAX_ROUNDS))
        if done >= MIN_ROUNDS and spent > 1:
            return


def time_round(specimens: Sequence[Specimen], samples: Sequence[Samples], clock: Clock) -> None:
    """All forwards, then the backwards from the last to the first, as in a step: what is saved stays meanwhile, so
    memory and caches are met in the state in which a step meets them."""
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


def pass_times(specimen: Specimen, samples: Samples) -> PassTimes:
    forward, whole = spread_of(samples.forward), spread_of(samples.backward)
    halves = spread_of(samples.input_half), spread_of(samples.weight_half)
    return with_halves(specimen, forward, whole, halves)


def with_halves(
    specimen: Specimen, forward: Seconds, whole: Seconds, halves: tuple[Seconds, Seconds]
) -> PassTimes:
    """No pass takes less than a plan can say, where there is one: views are no work, nor is a backward of parameters
    that nothing differentiable is made with."""
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
    """The whole in the proportion of its halves, each of which went over the operations that they share."""
    total = first.median + second.median
    scale = whole_.median / total if total else 0.0
    return _scaled(first, scale), _scaled(second, scale)


def _scaled(value: Seconds, factor: float) -> Seconds:
    return Seconds(median=value.median * factor, spread=value.spread * factor)


def spread_of(samples: Sequence[float]) -> Seconds:
    if len(samples) < 2:
        return Seconds(median=samples[0] if samples else 0.0)
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Seconds(median=middle, spread=(high - low) / 2)
