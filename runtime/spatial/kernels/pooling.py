"""Pools over windows of fetched rows, adaptive pools, and pools down to one row."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from planner.spatial import adaptive_rows, divisors
from runtime.spatial.group import stacked, summed
from runtime.spatial.operation import Kernel, Local


def _padding(local: Local, count: int) -> list[int]:
    """Returns the padding that is left to the operation: along a cut dimension it was fetched."""
    first = local.tensor("self").dim() - count
    cut = {dim - first for dim in local.step.output.cut_dims}
    return [0 if i in cut else p for i, p in enumerate(local.call.integers("padding", count, (0,)))]


def max_pool(local: Local) -> Tensor:
    """Returns the largest of each window of fetched rows.

    Args: `local` has the fetched input.
    Returns: this rank's rows of the output.
    """
    count = int(local.call.operation[-2])
    return local.run(padding=_padding(local, count))


def avg_pool(local: Local) -> Tensor:
    """Returns the sum of each window, divided by what the window counts; the rule knows where a window hangs over.

    Args: `local` has the fetched input.
    Returns: this rank's rows of the output.
    """
    count = int(local.call.operation[-2])
    x, output = local.tensor("self"), local.step.output
    pad = _padding(local, count)
    first = x.dim() - count
    given = local.call.get("divisor_override")
    counts = {dim: divisors(local.call, dim, dim - first) for dim in output.cut_dims}
    kernel = local.call.integers("kernel_size", count)
    uniform = all(set(found) == {kernel[dim - first]} for dim, found in counts.items())
    if given is not None or uniform:
        return local.run(padding=pad)
    y = local.run(padding=pad)  # divided by the full kernel along the cut dimensions
    for dim in output.cut_dims:
        low, high = local.rows(output, dim)
        factors = [kernel[dim - first] / n for n in counts[dim][low:high]]
        shape = [1] * y.dim()
        shape[dim] = high - low
        y = y * torch.tensor(factors, dtype=y.dtype, device=y.device).view(shape)
    return y


def adaptive_avg(local: Local) -> Tensor:
    """Returns the mean of each window of an adaptive pool, whose windows differ in size.

    Args: `local` has the fetched input.
    Returns: this rank's rows where the output is cut, otherwise all of it on each rank.
    """
    if local.step.output.axes:
        return _by_rows(local, lambda part, size, _: (local.target(part, size),))[0]
    whole, part = local.share(local.call.tensor("self"))
    return summed(local.run() * (part / whole), local.mesh, local.step.axes)


def adaptive_max(local: Local) -> tuple[Tensor, Tensor]:
    """Returns the largest of each window of an adaptive pool, and where in the whole sample it lies.

    Args: `local` has the fetched input.
    Returns: values and flat indices; this rank's rows where the output is cut, otherwise all on each rank.
    """
    x = local.tensor("self")
    first = x.dim() - int(local.call.operation[-2])
    if not local.step.output.axes:
        value, index = local.target(x, [1] * (x.dim() - first))
        lows = [local.rows(local.call.tensor("self"), dim)[0] for dim in range(first, x.dim())]
        return _first_of_largest(local, value, _global_index(local, index, x, lows))

    def pool(part: Tensor, size: list[int], lows: list[int]) -> tuple[Tensor, ...]:
        value, index = local.target(part, size)
        return value, _global_index(local, index, part, lows)

    value, index = _by_rows(local, pool)
    return value, index


Pool = Callable[[Tensor, list[int], list[int]], tuple[Tensor, ...]]


def _by_rows(local: Local, pool: Pool) -> list[Tensor]:
    """Pools one window after the other along the cut dimensions, which is cheap since the output is small."""
    x, output, source = local.tensor("self"), local.step.output, local.call.tensor("self")
    first = x.dim() - int(local.call.operation[-2])
    size, dims = list(output.shape[first:]), output.cut_dims
    windows = []
    for dim in dims:
        low, high = local.rows(output, dim)
        windows.append([adaptive_rows(row, source.shape[dim], output.shape[dim]) for row in range(low, high)])
        size[dim - first] = 1
    parts: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
    for place in itertools.product(*(range(len(found)) for found in windows)):
        part, lows = x, [0] * (x.dim() - first)
        for dim, found, i in zip(dims, windows, place, strict=True):
            low, high = found[i]
            part = part.narrow(dim, low - found[0][0], high - low)
            lows[dim - first] = low
        parts[place] = pool(part, size, lows)
    lengths = [len(found) for found in windows]
    count = len(next(iter(parts.values())))
    return [_joined({place: made[k] for place, made in parts.items()}, dims, lengths) for k in range(count)]


def _joined(parts: Mapping[tuple[int, ...], Tensor], dims: Sequence[int], lengths: Sequence[int]) -> Tensor:
    if not dims:
        return parts[()]
    rows = []
    for i in range(lengths[0]):
        inner = {place[1:]: part for place, part in parts.items() if place[0] == i}
        rows.append(_joined(inner, dims[1:], lengths[1:]))
    return torch.cat(rows, dims[0])


def _first_of_largest(local: Local, value: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest value over the ranks; of equal ones, the one that one process would meet first."""
    values = stacked(value, local.mesh, local.step.axes)
    places = local.mesh.stacked(index, local.step.axes)
    best = values.amax(0, keepdim=True)
    behind = torch.iinfo(places.dtype).max
    candidates = places.masked_fill(~((values == best) | (values.isnan() & best.isnan())), behind)
    winner = candidates.argmin(0, keepdim=True)
    return values.gather(0, winner).squeeze(0), places.gather(0, winner).squeeze(0)


def _global_index(local: Local, index: Tensor, part: Tensor, lows: Sequence[int]) -> Tensor:
    """Returns flat positions within a part as flat positions within the whole."""
    shape = local.call.tensor("self").shape
    first = part.dim() - len(lows)
    total, scale = torch.zeros_like(index), 1
    for dim in reversed(range(first, part.dim())):
        total += (index % part.shape[dim] + lows[dim - first]) * scale
        index = index // part.shape[dim]
        scale *= shape[dim]
    return total


KERNELS: Final[Mapping[str, Kernel]] = (
    {f"aten.max_pool{n}d": max_pool for n in (1, 2, 3)}
    | {f"aten.avg_pool{n}d": avg_pool for n in (1, 2, 3)}
    | {f"aten.adaptive_avg_pool{n}d": adaptive_avg for n in (1, 2, 3)}
    | {f"aten.adaptive_max_pool{n}d": adaptive_max for n in (1, 2, 3)}
)
