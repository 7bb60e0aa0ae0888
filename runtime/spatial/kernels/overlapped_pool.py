"""Average pools that work while halos travel: linear, as convolutions are, with a kernel of equal weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import Call, Fetch
from runtime.spatial.exchange import fetched, give_back_start, start
from runtime.spatial.group import SampleGroup
from runtime.spatial.kernels.convolution import Plain
from runtime.spatial.kernels.overlapped_convolution import OverlapPlan, Strip, rows_of, slab_of

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
