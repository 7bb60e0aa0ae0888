"""Fetches rows of a cut tensor from other ranks, as an autograd Function whose backward gives their gradients back.

What a rank sends, receives and keeps is worked out once for each `Fetch` and kept (`traffic`). `start` and
`give_back_start` do half of the work each, so that a kernel can compute while rows travel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import Fetch, RowRun
from runtime.spatial.group import SampleGroup

Pieces = tuple[tuple[int, tuple[RowRun, ...]], ...]  # of each peer, by its coordinate


class ExchangePlan(NamedTuple):
    """The rows that one rank of an axis sends, receives and keeps.

    Runs have rows of the whole tensor; a rank's own rows begin at `base`.
    """

    base: int
    kept: tuple[RowRun, ...]
    sends: Pieces
    receives: Pieces


@lru_cache(maxsize=4096)
def traffic(fetch: Fetch, place: int) -> ExchangePlan:
    """Returns what one rank of an axis sends, receives and keeps in a fetch.

    Args: `place` is the rank's coordinate along the axis of the fetch.
    Returns: the plan, which is kept for the next call.
    """
    base = 0 if fetch.points is None else fetch.points[place]
    others = [i for i in range(len(fetch.runs)) if i != place]
    sends = ((i, fetch.pieces(i, place)) for i in others)
    receives = ((i, fetch.pieces(place, i)) for i in others)
    return ExchangePlan(
        base,
        fetch.pieces(place, place),
        tuple((i, runs) for i, runs in sends if runs),
        tuple((i, runs) for i, runs in receives if runs),
    )


def _taken(x: Tensor, dim: int, run: RowRun, base: int) -> Tensor:
    """Returns a view of the rows that a run takes, in ascending order."""
    first = run.start - base
    if run.step == 0:
        return x.narrow(dim, first, 1)
    last = first + (run.length - 1) * run.step
    low, high = min(first, last), max(first, last)
    taken = x.narrow(dim, low, high - low + 1)
    return taken[(slice(None),) * dim + (slice(None, None, abs(run.step)),)] if abs(run.step) > 1 else taken


def _rows(x: Tensor, dim: int, run: RowRun, base: int) -> Tensor:
    """Returns the rows of a run, in its order; a view unless the run goes backwards."""
    taken = _taken(x, dim, run, base)
    return taken.flip(dim) if run.step < 0 else taken


def _add_rows(x: Tensor, dim: int, run: RowRun, base: int, rows: Tensor) -> None:
    """Adds rows, which come in the order of the run, to those that the run takes."""
    _taken(x, dim, run, base).add_(rows.flip(dim) if run.step < 0 else rows)


def _placed(grad: Tensor, dim: int, run: RowRun) -> Tensor:
    """Returns the gradient of what a run brought; a repeated row takes the sum of its copies."""
    part = grad.narrow(dim, run.at, run.length)
    return part.sum(dim, keepdim=True) if run.step == 0 else part


def _pack(parts: list[Tensor]) -> Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat([part.flatten() for part in parts])


class _Inbox(NamedTuple):
    peer: int
    runs: tuple[RowRun, ...]
    buffer: Tensor  # flat


def _unpack(box: _Inbox, shape: list[int], dim: int) -> list[tuple[RowRun, Tensor]]:
    found, at = [], 0
    for run in box.runs:
        sizes = [*shape]
        sizes[dim] = run.rows
        count = torch.Size(sizes).numel()
        found.append((run, box.buffer[at : at + count].view(sizes)))
        at += count
    return found


def _inboxes(received: Pieces, like: Tensor, dim: int, mesh: SampleGroup, axis: int) -> list[_Inbox]:
    slab = prod(n for i, n in enumerate(like.shape) if i != dim)
    found = []
    for place, runs in received:
        rows = sum(run.rows for run in runs)
        buffer = torch.empty(rows * slab, dtype=like.dtype, device=like.device)
        found.append(_Inbox(mesh.peer(axis, place), runs, buffer))
    return found


def _empty(shape: list[int], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format(like))


def memory_format(x: Tensor) -> torch.memory_format:
    """Returns the memory format that a tensor has: channels last, or contiguous.

    Args: `x` has any number of dimensions; only 4 and 5 can be channels last.
    Returns: torch's name of the format.
    """
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format


def _swapped(
    sent: Pieces,
    received: Pieces,
    rows_of: Callable[[RowRun], Tensor],
    like: Tensor,
    fetch: Fetch,
    mesh: SampleGroup,
) -> Callable[[], list[tuple[RowRun, Tensor]]]:
    """Sends rows to peers and starts to receive theirs; the function returned waits, and returns what came by run."""
    dim, shape = fetch.dim, list(like.shape)
    boxes = _inboxes(received, like, dim, mesh, fetch.axis)
    sends = [(mesh.peer(fetch.axis, other), _pack([rows_of(run) for run in runs])) for other, runs in sent]
    wait = mesh.wire.exchange(sends, [(box.peer, box.buffer) for box in boxes])

    def arrived() -> list[tuple[RowRun, Tensor]]:
        wait()
        del sends[:]
        return [part for box in boxes for part in _unpack(box, shape, dim)]

    return arrived


def start(x: Tensor, fetch: Fetch, mesh: SampleGroup) -> Callable[[], list[tuple[RowRun, Tensor]]]:
    """Sends the rows that other ranks want of `x`, and starts to receive theirs.

    Args: `x` is this rank's shard; `fetch` says who needs which rows.
    Returns: a function that waits, and returns each run that came with its rows.
    """
    plan = traffic(fetch, mesh.coordinates[fetch.axis])
    return _swapped(
        plan.sends, plan.receives, lambda run: _rows(x, fetch.dim, run, plan.base), x, fetch, mesh
    )


def give_back_start(
    grad_of: Callable[[RowRun], Tensor], like: Tensor, fetch: Fetch, mesh: SampleGroup
) -> Callable[[Tensor], None]:
    """Sends the gradients of the rows that a fetch brought to the ranks they came from.

    Args: `grad_of` returns the gradient of one run; `like` tells type, device and the sizes of the other
        dimensions.
    Returns: a function that waits, and adds the gradients that come back to the tensor it is given, in place.
    """
    plan = traffic(fetch, mesh.coordinates[fetch.axis])
    arrived = _swapped(plan.receives, plan.sends, grad_of, like, fetch, mesh)

    def finish(source: Tensor) -> None:
        for run, part in arrived():
            _add_rows(source, fetch.dim, run, plan.base, part)

    return finish


def give_back(grad: Tensor, rows: int, fetch: Fetch, mesh: SampleGroup) -> Tensor:
    """Returns the gradient of a fetch's source: the rank's own part and what comes back from other ranks.

    Args: `grad` is the gradient of the fetched tensor; `rows` counts this rank's own rows.
    Returns: a tensor with `rows` rows along the dimension of the fetch.
    """
    dim, place = fetch.dim, mesh.coordinates[fetch.axis]
    plan = traffic(fetch, place)
    finish = None if fetch.shared else give_back_start(lambda run: _placed(grad, dim, run), grad, fetch, mesh)
    source = _kept_gradient(grad, rows, plan, dim)
    if finish is not None:
        finish(source)
    return source


def _kept_gradient(grad: Tensor, rows: int, plan: ExchangePlan, dim: int) -> Tensor:
    if len(plan.kept) == 1:
        (run,) = plan.kept
        if run.step == 1 and run.length == rows:  # all of the rank's rows in order, as for a halo
            return grad.narrow(dim, run.at, rows).clone(memory_format=memory_format(grad))
    shape = list(grad.shape)
    shape[dim] = rows
    source = _empty(shape, grad).zero_()
    for run in plan.kept:
        _add_rows(source, dim, run, plan.base, _placed(grad, dim, run))
    return source


class _Context(FunctionCtx):
    fetch: Fetch
    mesh: SampleGroup
    rows: int


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, fetch: Fetch, mesh: SampleGroup) -> Tensor:
        ctx.fetch, ctx.mesh, ctx.rows = fetch, mesh, x.shape[fetch.dim]
        arrived = start(x, fetch, mesh)
        dim, place = fetch.dim, mesh.coordinates[fetch.axis]
        shape = list(x.shape)
        shape[dim] = fetch.sizes[place]
        out = _empty(shape, x)
        plan = traffic(fetch, place)
        if sum(run.length for run in fetch.runs[place]) < fetch.sizes[place]:
            out.fill_(fetch.fill)
        for run in plan.kept:
            out.narrow(dim, run.at, run.length).copy_(_rows(x, dim, run, plan.base))
        for run, part in arrived():
            out.narrow(dim, run.at, run.length).copy_(part)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return give_back(grad, ctx.rows, ctx.fetch, ctx.mesh), None, None


def fetched(x: Tensor, fetch: Fetch, mesh: SampleGroup) -> Tensor:
    """Returns a tensor with the rows that the operation needs, fetched from other ranks; differentiable.

    Args: `x` is this rank's shard.
    Returns: `x` itself where the rank has all rows already.
    """
    if _nothing_to_do(fetch):
        return x
    result: Tensor = _Fetch.apply(x, fetch, mesh)  # type: ignore[no-untyped-call]
    return result


@lru_cache(maxsize=4096)
def _nothing_to_do(fetch: Fetch) -> bool:
    return fetch.trivial
