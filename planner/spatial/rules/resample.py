"""Rules of interpolation, adaptive pooling and pixel shuffles: the size of the output is given, not a window.

Source rows of interpolation are computed in single and in double precision, as torch's kernels do. Where the two take
different rows, both are fetched. Where torch's own kernels of one precision take different rows, the operation is
refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from math import prod
from typing import Final

from planner.spatial.layout import Cut, Layout
from planner.spatial.rows_needed import Fetch, intervals
from planner.spatial.rule import Call, Rule, Step
from planner.spatial.rules.windows import output_cut, spatial_dims

NEAREST = ("aten.upsample_nearest{n}d", "aten._upsample_nearest_exact{n}d")
CUBIC = ("aten.upsample_bicubic2d",)
COUNTS: Final = {name.format(n=n): n for name in NEAREST for n in (1, 2, 3)} | {
    "aten.upsample_linear1d": 1,
    "aten.upsample_bilinear2d": 2,
    "aten.upsample_trilinear3d": 3,
    "aten.upsample_bicubic2d": 2,
}


def scale(call: Call, dim: int, position: int) -> float:
    """Returns the input rows for one output row.

    Args: `position` is that of dimension `dim` among the dimensions of space.
    Returns: from the factor that the call asks for where it has one, else the ratio of the sizes.
    """
    source, size = call.tensor("input"), call.outputs[0][dim]
    if call.flag("align_corners"):
        return (source.shape[dim] - 1) / (size - 1) if size > 1 else 0.0
    factors = call.get("scale_factors")
    if isinstance(factors, tuple):
        factor = factors[position]
        assert isinstance(factor, int | float)
        return 1.0 / factor
    return source.shape[dim] / size


def positions(call: Call, row: int, step: float) -> set[float]:
    """Returns the source positions at which torch's kernels may place an output row.

    Args: `step` is from `scale`.
    Returns: one in double precision, and two in single: with and without rounding before the last sum.
    """
    if "nearest" in call.operation or call.flag("align_corners"):
        at = row + 0.5 if "nearest_exact" in call.operation else float(row)
        return {at * step, _single(at * _single(step))}
    at, short = row + 0.5, _single(step)
    found = {at * step - 0.5, _single(at * short - 0.5), _single(_single(at * short) - 0.5)}
    return found if call.operation in CUBIC else {max(place, 0.0) for place in found}


def taken(call: Call, row: int, step: float, last: int) -> tuple[int, int]:
    """Returns the first and the last input row that an output row reads with a weight other than 0.

    Args: `step` is from `scale`; `last` is the last row that there is.
    Returns: a row more where single precision gives a weight to a row that double precision does not.
    """
    rows = set()
    for place in positions(call, row, step):
        nearest = "nearest" in call.operation
        floor = int(_single(place)) if nearest else math.floor(place)
        before, after = (1, 2) if call.operation in CUBIC else (0, 1)
        between = not nearest and place != floor
        rows |= {floor - before, floor + after} if between else {floor}
    return tuple(min(max(row, 0), last) for row in (min(rows), max(rows)))  # type: ignore[return-value]


def _check_nearest(call: Call) -> None:
    """Refuses sizes for which torch's kernels of "nearest" disagree.

    Torch has several kernels for one operation; which one it takes depends on layout, type and direction.
    """
    source, shape = call.tensor("input"), call.outputs[0]
    first = len(shape) - COUNTS[call.operation]
    for dim in range(first, len(shape)):
        size, made = source.shape[dim], shape[dim]
        step = scale(call, dim, dim - first)
        if "exact" in call.operation:
            agree = all(
                int(_single((row + 0.5) * _single(step))) == int((row + 0.5) * step) for row in range(made)
            )
        else:  # a multiple of one or two is taken for a factor of one or two by some
            agree = made not in (size, 2 * size) or step * made == size
        if not agree:
            why = f"torch's kernels disagree about the rows of {size} that make {made} by this factor"
            raise call.refuse(why, "size= in place of scale_factor=, recompute_scale_factor=True")


def _single(x: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", x))[0]
    return found


def interpolation(call: Call) -> Step:
    """Returns the Step of an interpolation.

    Raises: NoRule where torch's own kernels of "nearest" would read different rows.
    """
    if "nearest" in call.operation:
        _check_nearest(call)
    source, shape = call.tensor("input"), call.outputs[0]
    cuts: list[Cut | None] = [None] * len(shape)
    fetches: list[Fetch] = []
    for dim, place in spatial_dims(call, source, COUNTS[call.operation]).items():
        cut = source.cuts[dim]
        assert cut is not None
        step, last = scale(call, dim, place), cut.size - 1
        target = output_cut(call, cut, shape[dim])
        needs = []
        for low, high in zip(target.points, target.points[1:], strict=False):
            ends = {*range(low, min(low + 2, high)), *range(max(low, high - 2), high)}  # a weight may be 0
            found = [taken(call, row, step, last) for row in ends]
            needs.append((min((a for a, _ in found), default=0), max((b + 1 for _, b in found), default=0)))
        cuts[dim] = target
        fetches.append(intervals(dim, cut, needs))
    output = Layout(shape, tuple(cuts))
    return Step((output,), {"input": tuple(fetches)}, axes=output.axes)


def adaptive_rows(row: int, source: int, size: int) -> tuple[int, int]:
    """Returns the input rows (start, stop) that an adaptive pool takes for one output row.

    Args: `row` is the output row of `size`; `source` is the number of input rows.
    """
    return row * source // size, -((-(row + 1) * source) // size)


def adaptive(call: Call) -> Step:
    """Returns the Step of an adaptive pool.

    Returns: a reduction where one row is left; a window where there are at least as many rows as ranks.
    Raises: NoRule where only some of the cut dimensions are pooled to one row.
    """
    source, shape = call.tensor("self"), call.outputs[0]
    count = int(call.operation[-2])
    cuts: list[Cut | None] = [None] * len(shape)
    fetches: list[Fetch] = []
    for dim in spatial_dims(call, source, count):
        cut = source.cuts[dim]
        assert cut is not None
        if shape[dim] == 1:
            continue
        target = output_cut(call, cut, shape[dim])
        needs = []
        for low, high in zip(target.points, target.points[1:], strict=False):
            first = adaptive_rows(low, cut.size, shape[dim])[0]
            needs.append((first, adaptive_rows(high - 1, cut.size, shape[dim])[1]))
        cuts[dim] = target
        fetches.append(intervals(dim, cut, needs))
    output = Layout(shape, tuple(cuts))
    if output.axes not in (frozenset(), source.axes):
        raise call.refuse("one cut dimension is pooled to one row and another is not")
    reduced = 0 if output.axes else prod(shape)
    outputs = (output, output) if "max" in call.operation else (output,)
    return Step(outputs, {"self": tuple(fetches)}, axes=source.axes, reduced=reduced)


def shuffle(call: Call) -> Step:
    """Returns the Step of a pixel shuffle or unshuffle.

    Returns: channels become rows, or rows channels; every rank has what it needs once blocks are not cut apart.
    """
    source, shape = call.tensor("self"), call.outputs[0]
    up = call.operation == "aten.pixel_shuffle"
    factor = call.integer("upscale_factor" if up else "downscale_factor")
    cuts: list[Cut | None] = [None] * len(shape)
    fetches: list[Fetch] = []
    for dim in spatial_dims(call, source, 2):
        cut = source.cuts[dim]
        assert cut is not None
        if up:
            cuts[dim] = Cut(cut.axis, tuple(p * factor for p in cut.points))
            continue
        target = output_cut(call, cut, shape[dim])
        cuts[dim] = target
        blocks = [(a * factor, b * factor) for a, b in zip(target.points, target.points[1:], strict=False)]
        fetches.append(intervals(dim, cut, blocks))
    output = Layout(shape, tuple(cuts))
    return Step((output,), {"self": tuple(fetches)}, axes=output.axes)


RESAMPLES: Final[Mapping[str, Rule]] = (
    dict.fromkeys(COUNTS, interpolation)
    | {f"aten.adaptive_{kind}_pool{n}d": adaptive for kind in ("avg", "max") for n in (1, 2, 3)}
    | {"aten.pixel_shuffle": shuffle, "aten.pixel_unshuffle": shuffle}
)
