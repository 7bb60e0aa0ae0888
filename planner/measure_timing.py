"""Times of the passes of layers: rounds over all of them, so that noise falls on all alike, medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from planner.measure_passes import (
    BackwardSplit,
    Specimen,
    backward,
    forget_gradients,
    gradients_of,
    roots_of,
    whole_backward,
)
from planner.profile import Seconds

T = TypeVar("T")

WARM_UP_ROUNDS = 2
MIN_ROUNDS = 5
MAX_ROUNDS = 60


class Clock(Protocol):
    def time(self, action: Callable[[], T]) -> tuple[float, T]: ...


class CpuClock:
    def time(self, action: Callable[[], T]) -> tuple[float, T]:
        start = time.perf_counter_ns()
        result = action()
        return (time.perf_counter_ns() - start) * 1e-9, result


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
    split: BackwardSplit | None,
    budget_s: float,
) -> Iterator[float]:
    """Fills in one Samples a specimen, and gives the share that is done after every round: at least MIN_ROUNDS of
    them, then until the budget is spent."""
    for _ in range(WARM_UP_ROUNDS):
        time_round(specimens, samples, clock, split)
        yield 0.0
    for row in samples:
        row.forget()
    begun = time.perf_counter()
    for done in range(1, MAX_ROUNDS + 1):
        time_round(specimens, samples, clock, split)
        spent = (time.perf_counter() - begun) / budget_s
        yield min(1.0, max(spent, done / MAX_ROUNDS))
        if done >= MIN_ROUNDS and spent > 1:
            return


def time_round(
    specimens: Sequence[Specimen], samples: Sequence[Samples], clock: Clock, split: BackwardSplit | None
) -> None:
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
        roots = live.pop()
        gradients = gradients_of(roots)
        seconds, _ = clock.time(lambda: whole_backward(specimen, roots, gradients))  # noqa: B023
        row.backward.append(seconds)
        forget_gradients(specimen)
    _time_halves([row for row in rows if row[0].has_halves], clock, split)


def _time_halves(rows: Sequence[tuple[Specimen, Samples]], clock: Clock, split: BackwardSplit | None) -> None:
    live = [roots_of(x.outputs() if split is None else x.split_outputs()) for x, _ in rows]
    for specimen, row in reversed(rows):
        roots = live.pop()
        input_s, weight_s = _halves(specimen, roots, clock, split)
        row.input_half.append(input_s)
        row.weight_half.append(weight_s)
        forget_gradients(specimen)


def _halves(
    specimen: Specimen, roots: Sequence[Tensor], clock: Clock, split: BackwardSplit | None
) -> tuple[float, float]:
    gradients = gradients_of(roots)
    inputs, parameters = specimen.differentiable_inputs, specimen.trainable
    if split is None:
        input_s, _ = clock.time(lambda: backward(roots, gradients, inputs, keep=True))
        weight_s, _ = clock.time(lambda: backward(roots, gradients, parameters, keep=False))
    else:
        input_s, halfway = clock.time(lambda: split.input_half(roots, gradients, inputs, parameters))
        weight_s, _ = clock.time(lambda: split.weight_half(halfway, parameters))
    return input_s, weight_s


def pass_times(specimen: Specimen, samples: Samples, *, executed_halves: bool) -> PassTimes:
    forward, backward_ = spread_of(samples.forward), spread_of(samples.backward)
    nothing = Seconds(median=0.0)
    if not samples.input_half:
        only_inputs = bool(specimen.differentiable_inputs)
        return PassTimes(
            forward=forward,
            backward=backward_,
            input_grad=backward_ if only_inputs else nothing,
            weight_grad=nothing if only_inputs else backward_,
        )
    halves = spread_of(samples.input_half), spread_of(samples.weight_half)
    if not executed_halves:
        halves = shared_out(backward_, *halves)
    return PassTimes(forward=forward, backward=backward_, input_grad=halves[0], weight_grad=halves[1])


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
