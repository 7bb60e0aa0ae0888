"""Finds the rows of an output after which what a model needs of its input repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import lcm

from planner.spatial.need import Reach
from planner.spatial.operation import GETITEM, Operation
from planner.spatial.rows_needed import Fetch
from planner.spatial.rule import asked, axis_of, named
from planner.spatial.rules.table import rule

COARSEST = 8  # output rows for an input row, where too few rows tell
SAMPLED = 64  # output rows of which the period of an operation is read


def alignment(reach: Reach) -> tuple[int, ...]:
    """Returns the least common multiple of a model's strides along each axis of space, in rows of the output.

    Args: `reach` is of the model.
    Returns: one number for each of the reach's `output_dims`; boxes whose ends are multiples of it need alike margins.
    """
    return tuple(_along(reach, axis) for axis in sorted(reach.spaces(reach.result)))


def _along(reach: Reach, axis: int) -> int:
    found, rates = 1, {reach.result: Fraction(1)}  # rows of a tensor for each row of the output
    for operation in reversed(reach.operations):
        rate = rates.get(operation.name)
        if rate is None:
            continue
        if operation.operation == GETITEM:
            rates.setdefault(operation.reads()[0], rate)
            continue
        for name, ratio, period in _periods(reach, operation, axis):
            rates.setdefault(name, rate * ratio)
            found = lcm(found, (period / rate).numerator)
    return found


def _periods(reach: Reach, operation: Operation, axis: int) -> Iterator[tuple[str, Fraction, int]]:
    """Yields each tensor that an operation reads, with its rows for a row of the result, and the period of those."""
    sizes = reach.spaces(operation.name)
    if axis not in sizes:
        return
    count = min(SAMPLED, max(1, sizes[axis] // 2))  # far from the borders, where windows are cut off
    first = (sizes[axis] - count) // 2
    points = {a: (0, 0, n, n) for a, n in sizes.items()}
    points[axis] = (0, *range(first, first + count + 1), sizes[axis])
    reads = {name: reach.proportional(name, points, sizes) for name in operation.reads()}
    if not all(layout.whole for layout in reads.values()):
        step = rule(asked(operation, reads, points))
        for argument, name in named(operation):
            dim = next((d for d in reads[name].cut_dims if axis_of(reads[name], d) == axis), None)
            if dim is None:
                continue
            ratio, fetch = Fraction(reads[name].shape[dim], sizes[axis]), step.fetch(argument, dim)
            if fetch is None or fetch.shared:
                yield name, ratio, ratio.denominator
            else:
                yield name, *_period(fetch, ratio.limit_denominator(COARSEST))


def _period(fetch: Fetch, otherwise: Fraction) -> tuple[Fraction, int]:
    """Returns the rows fetched for a row of the result, and after how many the pattern repeats itself."""
    first = [runs[0].start - runs[0].at if runs else None for runs in fetch.runs[1:-1]]
    for period in range(1, len(first) // 2 + 1):
        pairs = list(zip(first, first[period:], strict=False))
        if any((a is None) != (b is None) for a, b in pairs):
            continue
        steps = {b - a for a, b in pairs if a is not None and b is not None}
        if len(steps) == 1 and (step := abs(steps.pop())):
            return Fraction(step, period), period
    return otherwise, 1
