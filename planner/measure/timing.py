"""Times the passes of layers in rounds over all of them, so that noise falls on all alike.

Every layer is visited several times, minutes apart where there are many layers, because a machine drifts. Where visits
disagree, two more are made, and the three that lie closest together count. Results are medians of their rounds. The
spread is half the distance between the quartiles, or how far the median of any visit lies from the result, whichever
is more. Visits that do not count for the result count for the spread, since a run may meet what they met.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from planner.arrays import NS_PER_S
from planner.measure.passes import (
    Apart,
    Clock,
    Specimen,
    forget_gradients,
    gradients_of,
    roots_of,
    whole_backward,
)
from planner.profile import Seconds


class Visit(NamedTuple):
    """How thoroughly layers are timed at one visit."""

    warm_up_rounds: int
    min_rounds: int
    max_rounds: int
    share: float  # of the time for all visits


VISITS = (Visit(2, 3, 30, 0.5), Visit(1, 1, 15, 0.25), Visit(1, 1, 15, 0.25))
AGAIN = (Visit(1, 1, 15, 0.25),) * 2  # to rows whose visits disagree
APART, APART_S = (
    0.25,
    1e-3,
)  # disagree: a spread of so much of the median, of a pass that takes so long at least
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

    @property
    def doubtful(self) -> bool:
        """Returns whether visits disagree on the forward or the whole backward pass."""
        return any(x.spread > APART * x.median and x.median > APART_S for x in (self.forward, self.backward))


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
    forward, whole = agreed([v.forward for v in visits]), agreed([v.backward for v in visits])
    halves = agreed([v.input_half for v in visits]), agreed([v.weight_half for v in visits])
    return with_halves(specimen, forward, whole, halves)


def agreed(visits: Sequence[Sequence[float]]) -> Seconds:
    """Returns the median of the visits whose medians lie closest together, and a spread that reaches every visit.

    As many visits count for the median as all rows get.
    """
    found = sorted(filter(None, visits), key=statistics.median)
    middles, count = [statistics.median(visit) for visit in found], len(VISITS)
    firsts = range(max(1, len(found) - count + 1))
    first = min(firsts, key=lambda i: max(middles[i : i + count], default=0) - (middles[i:] or [0])[0])
    result = spread_of(*found[first : first + count])
    reach = max((abs(middle - result.median) for middle in middles), default=0.0)
    return replace(result, spread=max(result.spread, reach))


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
