"""Pools over windows of fetched rows, adaptive pools, and pools down to one row.

Average pools that work while halos travel: linear, as convolutions are, with a kernel of equal weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import Call, Fetch, adaptive_rows, divisors
from runtime.same_bits import Plain
from runtime.spatial.exchange import fetched, give_back_start, start
from runtime.spatial.group import SampleGroup, stacked, summed
from runtime.spatial.kernels.overlapped_convolution import OverlapPlan, Strip, rows_of, slab_of
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


ATEN = torch.ops.aten
POOLS: Final[dict[int, Callable[..., Tensor]]] = {2: ATEN.avg_pool2d.default, 3: ATEN.avg_pool3d.default}
BACKWARD: Final[dict[int, Callable[..., Tensor]]] = {
    2: ATEN.avg_pool2d_backward.default,
    3: ATEN.avg_pool3d_backward.default,
}


def plain_arguments(call: Call, cut_dims: tuple[int, ...]) -> Plain | None:
    """Returns the arguments of a pool that divides every window by its full size, padding included.

    Args: `call` is the captured pool; `cut_dims` are the dimensions whose padding is fetched.
    Returns: None for other pools.
    """
    count = int(call.operation[-2])
    counted = call.get("count_include_pad") in (None, True)
    if (
        count not in POOLS
        or not counted
        or call.flag("ceil_mode")
        or call.get("divisor_override") is not None
    ):
        return None
    kernel = call.integers("kernel_size", count)
    first = len(call.outputs[0]) - count
    pad = call.integers("padding", count, (0,))
    padding = [0 if first + i in cut_dims else p for i, p in enumerate(pad)]
    return Plain(list(call.integers("stride", count, kernel)), padding, [1] * count, 1)


class _Context(FunctionCtx):
    plan: OverlapPlan
    mesh: SampleGroup
    kernel: tuple[int, ...]
    saved_tensors: tuple[Tensor, ...]


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, kernel: tuple[int, ...], plan: OverlapPlan, mesh: SampleGroup
    ) -> Tensor:
        dim, count = plan.fetch.dim, len(kernel)
        arrived = start(x, plan.fetch, mesh)
        y = POOLS[count](x, *_window(kernel, plan.settings))
        parts = arrived()
        slabs = [slab_of(x, dim, strip, parts) for strip in plan.strips]
        for strip, slab in zip(plan.strips, slabs, strict=True):
            added = POOLS[count](slab, *_window(kernel, plan.strip_settings, plan, strip))
            y.narrow(dim, strip.first, strip.length).add_(added)
        ctx.plan, ctx.mesh, ctx.kernel = plan, mesh, kernel
        ctx.save_for_backward(x, *slabs)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor) -> tuple[Any, ...]:
        x, *slabs = ctx.saved_tensors
        plan, dim, count = ctx.plan, ctx.plan.fetch.dim, len(ctx.kernel)
        grads = []
        for strip, slab in zip(plan.strips, slabs, strict=True):
            part = dy.narrow(dim, strip.first, strip.length).contiguous()
            window = _window(ctx.kernel, plan.strip_settings, plan, strip)
            grads.append((strip, BACKWARD[count](part, slab, *window)))
        finish = give_back_start(lambda run: rows_of(run, grads, x, dim), x, plan.fetch, ctx.mesh)
        dx = BACKWARD[count](dy, x, *_window(ctx.kernel, plan.settings))
        finish(dx)
        return dx, None, None, None


def _window(
    kernel: tuple[int, ...], settings: Plain, plan: OverlapPlan | None = None, strip: Strip | None = None
) -> tuple[list[int], list[int], list[int], bool, bool, int]:
    """Returns the arguments of torch's pool; a strip's kernel is the part that meets the halo, divided by
    the whole."""
    size = list(kernel)
    if plan is not None and strip is not None:
        size[plan.fetch.dim - 2] = strip.taps[1] - strip.taps[0]
    return size, settings.stride, settings.padding, False, True, prod(kernel)


@dataclass(frozen=True)
class Pooled:
    """An average pool's place in a graph; other cut dimensions are fetched before."""

    others: tuple[Fetch, ...]
    kernel: tuple[int, ...]
    plan: OverlapPlan
    mesh: SampleGroup

    def __call__(self, x: Tensor) -> Tensor:
        for fetch in self.others:
            x = fetched(x, fetch, self.mesh)
        y: Tensor = _Pooled.apply(x, self.kernel, self.plan, self.mesh)  # type: ignore[no-untyped-call]
        return y
