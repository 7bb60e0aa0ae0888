"""Convolutions that compute their interior while halos travel, without a padded copy of the input.

A convolution is linear in its input. So the part of the output that comes from a rank's own rows is one
ordinary convolution, with zeros where the neighbours' rows will be. What the halos add to the boundary rows
follows when they have arrived. Backward the halos' gradients are computed first and sent; the bulk is worked
out meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import Cut, Fetch, RowRun
from runtime.same_bits import Plain
from runtime.spatial.exchange import fetched, give_back_start, start
from runtime.spatial.group import SampleGroup
from runtime.spatial.kernels.convolution import PLAIN

ATEN = torch.ops.aten
THIN = 4
VOLUME = 5  # dimensions of a weight, or of a sample in its batch


class Strip(NamedTuple):
    """Boundary rows of the output that the halo of one side reaches."""

    first: int  # output row, by local number
    length: int
    window: int  # global row at which the first of their windows begins
    rows: int  # that the windows span
    begin: int  # the halo, in global rows
    stop: int
    taps: tuple[int, int]  # of the kernel that meet it: the others would meet zeros


@dataclass(frozen=True)
class OverlapPlan:
    """One rank's part of an overlapped convolution along one cut dimension."""

    fetch: Fetch
    settings: Plain  # with the padding of the bulk along the cut dimension
    strip_settings: Plain  # without
    strips: tuple[Strip, ...]
    rows: int  # of the output

    @property
    def worthwhile(self) -> bool:
        """Returns whether overlap pays: boundary rows are computed twice, and where they are many, copying
        the input costs less."""
        return THIN * sum(strip.length for strip in self.strips) <= self.rows


def plan(
    fetch: Fetch, output: Cut, plain: Plain, position: int, kernel: int, place: int
) -> OverlapPlan | None:
    """Plans how one rank's convolution overlaps its halos along one dimension.

    Args: `plain` are the convolution's arguments; `position` counts the dimension among those of space;
        `kernel` is its size there; `place` is the rank's coordinate along the axis of the fetch.
    Returns: None where an ordinary convolution of the rank's own rows does not make just the rows wanted.
    """
    assert fetch.points is not None
    if not fetch.runs[place]:  # nothing but padding
        return None
    own, end = fetch.points[place], fetch.points[place + 1]
    low, high = output.rows(place)
    stride, dilation = plain.stride[position], plain.dilation[position]
    reach = dilation * (kernel - 1)
    first_row, last_row = _span(fetch, place)
    pad = own - first_row
    if (
        pad < 0
        or 2 * pad > kernel * dilation
        or (end - own + 2 * pad - reach - 1) // stride + 1 != high - low
    ):
        return None
    strips = []
    for begin, stop in ((max(first_row, 0), own), (end, min(last_row, fetch.size))):
        strip = _strip([first_row + o * stride for o in range(high - low)], kernel, dilation, begin, stop)
        if strip is not None:
            strips.append(strip)
    before, after = plain.padding[:position], plain.padding[position + 1 :]
    settings = [plain._replace(padding=[*before, rows, *after]) for rows in (pad, 0)]
    return OverlapPlan(fetch, settings[0], settings[1], tuple(strips), high - low)


def _strip(windows: Sequence[int], kernel: int, dilation: int, begin: int, stop: int) -> Strip | None:
    """Returns what windows that start at these rows take of the rows [begin, stop); None where they take none."""
    met = [
        (o, tap)
        for o, window in enumerate(windows)
        for tap in range(kernel)
        if begin <= window + tap * dilation < stop
    ]
    if not met:
        return None
    outputs, taps = {o for o, _ in met}, {tap for _, tap in met}
    first, last, low, high = min(outputs), max(outputs), min(taps), max(taps)
    rows = windows[last] - windows[first] + (high - low) * dilation + 1
    return Strip(first, last - first + 1, windows[first] + low * dilation, rows, begin, stop, (low, high + 1))


def _span(fetch: Fetch, place: int) -> tuple[int, int]:
    """Returns the global rows that a rank's windows span, those outside the tensor included."""
    (run,) = fetch.runs[place]
    return run.start - run.at, run.start - run.at + fetch.sizes[place]


class _Context(FunctionCtx):
    plan: OverlapPlan
    mesh: SampleGroup
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Overlapped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor | None, plan: OverlapPlan, mesh: SampleGroup
    ) -> Tensor:
        dim = plan.fetch.dim
        arrived = start(x, plan.fetch, mesh)
        y: Tensor = PLAIN[weight.dim() - 2](x, weight, bias, *plan.settings)
        parts = arrived()
        slabs = [slab_of(x, dim, strip, parts) for strip in plan.strips]
        for strip, slab in zip(plan.strips, slabs, strict=True):
            y.narrow(dim, strip.first, strip.length).add_(_added(slab, weight, plan, strip))
        ctx.plan, ctx.mesh = plan, mesh
        ctx.save_for_backward(x, weight, *slabs)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor) -> tuple[Any, ...]:
        x, weight, *slabs = ctx.saved_tensors
        plan, dim = ctx.plan, ctx.plan.fetch.dim
        wanted = list(ctx.needs_input_grad[:3])
        grads = []
        for strip, slab in zip(plan.strips, slabs, strict=True):
            part = dy.narrow(dim, strip.first, strip.length)
            grads.append(_strip_gradients(part, slab, weight, plan, strip, wanted))
        finish = None
        if wanted[0]:
            inputs = [(strip, found[0]) for strip, found in zip(plan.strips, grads, strict=True)]
            finish = give_back_start(lambda run: rows_of(run, inputs, x, dim), x, plan.fetch, ctx.mesh)
        dx, dw, db = _gradients(dy, x, weight, plan.settings, wanted)
        for strip, (_, extra, _) in zip(plan.strips, grads, strict=True):
            if dw is not None and extra is not None:
                _taps(dw, plan, strip).add_(extra)
        if finish is not None and dx is not None:
            finish(dx)
        return dx, dw, db, None, None


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _flat(plan: OverlapPlan, strip: Strip, weight: Tensor) -> Plain | None:
    """Returns the arguments for a strip of one row as an image, whose convolution is several times as
    fast; None for others."""
    if strip.rows > 1 or weight.dim() < VOLUME:
        return None
    stride, padding, dilation, groups = plan.strip_settings
    rest = [i for i in range(len(stride)) if i != plan.fetch.dim - 2]
    over, around, apart = ([values[i] for i in rest] for values in (stride, padding, dilation))
    return Plain(over, around, apart, groups)


def _added(slab: Tensor, weight: Tensor, plan: OverlapPlan, strip: Strip) -> Tensor:
    """Returns what a halo adds to the boundary rows."""
    dim, taps, flat = plan.fetch.dim, _taps(weight, plan, strip), _flat(plan, strip, weight)
    if flat is None:
        found: Tensor = PLAIN[weight.dim() - 2](slab, taps, None, *plan.strip_settings)
        return found
    found = PLAIN[weight.dim() - 3](slab.squeeze(dim), taps.squeeze(dim), None, *flat)
    return found.unsqueeze(dim)


def _strip_gradients(
    dy: Tensor, slab: Tensor, weight: Tensor, plan: OverlapPlan, strip: Strip, wanted: list[bool]
) -> Gradients:
    dim, taps, flat = plan.fetch.dim, _taps(weight, plan, strip), _flat(plan, strip, weight)
    own = [*wanted[:2], False]
    if flat is None:
        return _gradients(dy, slab, taps, plan.strip_settings, own)
    found = _gradients(dy.squeeze(dim), slab.squeeze(dim), taps.squeeze(dim), flat, own)
    dx, dw = (None if x is None else x.unsqueeze(dim) for x in found[:2])
    return dx, dw, None


def _taps(weight: Tensor, plan: OverlapPlan, strip: Strip) -> Tensor:
    first, end = strip.taps
    return weight.narrow(plan.fetch.dim, first, end - first)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, settings: Plain, wanted: list[bool]) -> Gradients:
    stride, padding, dilation, groups = settings
    nothing = [0] * len(stride)
    found: Gradients = ATEN.convolution_backward.default(
        dy, x, weight, [weight.shape[0]], stride, padding, dilation, False, nothing, groups, wanted
    )
    return found


def slab_of(x: Tensor, dim: int, strip: Strip, parts: list[tuple[RowRun, Tensor]]) -> Tensor:
    """Returns the rows that a strip's windows span: the halo where it lies, zeros elsewhere.

    Args: `x` tells type and the sizes of other dimensions; `parts` are the runs that came, with their rows.
    Returns: a new tensor with the strip's rows along `dim`.
    """
    shape = list(x.shape)
    shape[dim] = strip.rows
    slab = torch.zeros(shape, dtype=x.dtype, device=x.device)
    for run, part in parts:
        low, high = _common(run, strip)
        if low < high:
            slab.narrow(dim, low - strip.window, high - low).copy_(
                part.narrow(dim, low - run.start, high - low)
            )
    return slab


def _common(run: RowRun, strip: Strip) -> tuple[int, int]:
    low = max(run.start, strip.begin, strip.window)
    return low, min(run.start + run.length, strip.stop, strip.window + strip.rows)


def rows_of(run: RowRun, inputs: Sequence[tuple[Strip, Tensor | None]], like: Tensor, dim: int) -> Tensor:
    """Returns the gradient of a halo's rows, from the strip on their side.

    Args: `run` names the rows; `inputs` are the strips with the gradients of their slabs; `like` tells the
        other sizes.
    Returns: a new tensor with the run's rows along `dim`.
    """
    shape = list(like.shape)
    shape[dim] = run.length
    rows = torch.zeros(shape, dtype=like.dtype, device=like.device)
    for strip, grad in inputs:
        low, high = _common(run, strip)
        if grad is not None and low < high:
            rows.narrow(dim, low - run.start, high - low).add_(
                grad.narrow(dim, low - strip.window, high - low)
            )
    return rows


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a tensor as autocast casts it, which leaves double precision alone."""
    return x if x.dtype == torch.float64 else x.to(dtype)


@dataclass(frozen=True)
class Overlapped:
    """A convolution's place in a graph; other cut dimensions are fetched before."""

    others: tuple[Fetch, ...]
    plan: OverlapPlan
    mesh: SampleGroup

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        for fetch in self.others:
            x = fetched(x, fetch, self.mesh)
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            x, weight = _cast(x, dtype), _cast(weight, dtype)
            bias = None if bias is None else _cast(bias, dtype)
        with torch.autocast(kind, enabled=False):
            y: Tensor = _Overlapped.apply(x, weight, bias, self.plan, self.mesh)  # type: ignore[no-untyped-call]
        return y
