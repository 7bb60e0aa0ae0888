"""Lines through what was planned and what was measured, and the errors that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, median, quantiles
from typing import Final, NamedTuple

from planner.arrays import NS_PER_S
from planner.cluster import LONGEST_START_S, MOST_TIMES, Correction
from planner.errors import BadInput

_LEAST_NS: Final = 1.0  # that a clock tells: of a shorter time no error is a multiple of it


class Sample(NamedTuple):
    """One stage's action, update or sum, one hop, or one peak of a run: as planned, and the mean of what was
    measured.
    """

    planned: float
    measured: float


def line_through(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    """Returns the start and the factor of the line `measured = start + factor * planned`; neither is negative.

    Relative errors count, so that small sizes are heard.

    Args: `proportional` puts what goes beyond the plan into the factor where sizes are too alike to tell.
    """
    sizes = [s.planned for s in samples if s.planned > 0]
    if len(sizes) < 3 or max(sizes) < 2 * min(sizes):
        return _by_the_middle(samples, proportional)
    weights = [1 / max(s.measured, 1.0) ** 2 for s in samples]
    total = sum(weights)
    x = sum(w * s.planned for w, s in zip(weights, samples, strict=True)) / total
    y = sum(w * s.measured for w, s in zip(weights, samples, strict=True)) / total
    over = sum(w * (s.planned - x) * (s.measured - y) for w, s in zip(weights, samples, strict=True))
    slope = over / sum(w * (s.planned - x) ** 2 for w, s in zip(weights, samples, strict=True))
    if slope <= 0 or y - slope * x < 0:
        return _by_the_middle(samples, proportional)
    return y - slope * x, slope


def _by_the_middle(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    beyond = median(s.measured - s.planned for s in samples)
    if beyond >= 0 and not proportional:
        return beyond, 1.0
    return 0.0, max(1e-3, median([s.measured / s.planned for s in samples if s.planned] or [1.0]))


def correction_by(samples: Sequence[Sample], *, proportional: bool = False) -> Correction | None:
    """Returns the correction `measured = start + factor * planned`. Where sizes are too alike to tell the two
    apart, what goes beyond the plan is the start, or the factor if `proportional`.
    """
    if not samples:
        return None
    start, factor = line_through(samples, proportional)
    fitted = [(s.measured, start + factor * s.planned) for s in samples]
    ratios = [measured / max(_LEAST_NS, own) for measured, own in fitted if own > 0]
    return rounded(start, factor, half_range(ratios), len(samples))


def rounded(start_ns: float, factor: float, spread: float, samples: int) -> Correction:
    """Returns a correction with as many digits as its samples tell.

    Raises: BadInput where runs took so long that the plan says nothing of them.
    """
    if factor > MOST_TIMES or start_ns > LONGEST_START_S * NS_PER_S:
        raise BadInput(
            f"what was planned took {factor:.3g} times as long, and {start_ns / NS_PER_S:.3g} s more",
            where="calibrate",
            allowed=f"at most {MOST_TIMES:.0g} times, and {LONGEST_START_S} s: runs of plans for these machines",
        )
    return Correction(
        start_s=round(max(start_ns, 0.0)) * 1e-9,
        factor=float(f"{factor:.4g}"),
        spread=min(MOST_TIMES, float(f"{spread:.3g}")),
        samples=samples,
    )


def half_range(values: Sequence[float]) -> float:
    """Returns half the distance between the quartiles of values in any order; 0 for fewer than two.

    Args: `values` are in any unit.
    """
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


# Of Student's distribution: what 5 % lie beyond on one side, by degrees of freedom from 3 on.
_STUDENT: Final = (2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)


def nine_of_ten(errors: Sequence[float], plans: int) -> float:
    """Returns the error that nine plans of ten stay below which were in no run, by the errors of plans left out.

    From ten plans on, that is what nine of ten errors stay below. The worst of fewer plans says too little of the next
    one: their errors count as drawn from a normal distribution around none, of which the next one is drawn as well.

    Args: `errors` are not negative, of one or more runs of each plan; of up to two plans, none was left out.
    """
    most = errors[0] if len(errors) == 1 else quantiles(errors, n=10, method="inclusive")[-1]
    if not 3 <= plans < 3 + len(_STUDENT):
        return most
    middle = sqrt(fmean(x * x for x in errors))
    return max(most, _STUDENT[plans - 3] * sqrt(1 + 1 / plans) * middle)
