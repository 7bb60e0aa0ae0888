"""Reductions over a cut dimension: each rank reduces its part, the parts are combined, all ranks get the whole.

Losses on shards: each rank sums its part; sums and counts are added up in one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.spatial import LOSSES
from runtime.spatial.group import SampleGroup, enter, stacked, summed
from runtime.spatial.operation import Kernel, Local


def _over(local: Local) -> frozenset[int]:
    """Returns the axes of the grid over which the operation reduces."""
    return local.step.axes - local.step.output.axes


def total(local: Local) -> Tensor:
    """Returns the sum over all shards.

    Args: `local` has this rank's part.
    Returns: the sum, whole along the axes that are reduced.
    """
    return summed(local.run(), local.mesh, _over(local))


def mean(local: Local) -> Tensor:
    """Returns the mean over all shards, each weighted by its share of the elements.

    Args: `local` has this rank's part.
    Returns: the mean, whole along the axes that are reduced.
    """
    whole, part = local.share(_reduced_source(local))
    return summed(local.run() * (part / whole), local.mesh, _over(local))


def _reduced_source(local: Local) -> Any:
    """Returns the source as if only what is reduced were cut: its share is this rank's weight in a mean."""
    source = local.call.tensor("self")
    over = _over(local)
    for dim in source.cut_dims:
        cut = source.cuts[dim]
        if cut is not None and cut.axis not in over:
            source = source.with_cut(dim, None)
    return source


class _Context(FunctionCtx):
    mesh: SampleGroup
    axes: frozenset[int]
    dims: tuple[int, ...]
    keepdim: bool
    saved_tensors: tuple[Tensor, ...]


class _Extreme(torch.autograd.Function):
    """The largest or smallest over all ranks; ties share the gradient evenly, as in one process."""

    @staticmethod
    def forward(
        ctx: _Context,
        x: Tensor,
        dims: tuple[int, ...],
        keepdim: bool,
        largest: bool,
        mesh: SampleGroup,
        axes: frozenset[int],
    ) -> Tensor:
        own = x.amax(dims, keepdim=True) if largest else x.amin(dims, keepdim=True)
        found = mesh.reduce(own, axes, "max" if largest else "min")
        ctx.mesh, ctx.axes, ctx.dims, ctx.keepdim = mesh, axes, dims, keepdim
        ctx.save_for_backward(x, found)
        return found if keepdim else found.squeeze(dims)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        x, found = ctx.saved_tensors
        ties = (x == found).to(grad.dtype)
        count = ctx.mesh.reduce(ties.sum(ctx.dims, keepdim=True), ctx.axes)
        if not ctx.keepdim:
            for dim in sorted(ctx.dims):
                grad = grad.unsqueeze(dim)
        return ties * (grad / count), None, None, None, None, None


def extreme(local: Local) -> Tensor:
    """Returns the largest or smallest element over all shards.

    Args: `local` has this rank's part; with a second tensor the operation is done element by element.
    Returns: values, whole along the axes that are reduced.
    """
    if isinstance(local.arguments.get("other"), Tensor) or not _over(local):
        return local.run()
    x = local.tensor("self")
    dims = local.call.dims("dim", x.dim())
    largest = "max" in local.call.operation
    result: Tensor = _Extreme.apply(  # type: ignore[no-untyped-call]
        x, dims, local.call.flag("keepdim"), largest, local.mesh, _over(local)
    )
    return result


def some(local: Local) -> Tensor:
    """Returns whether any, or all, elements of all shards are true.

    Args: `local` has this rank's part.
    Returns: truth values, whole along the axes that are reduced.
    """
    made = local.run()
    operation = "max" if local.call.operation == "aten.any" else "min"
    return local.mesh.reduce(made.to(torch.uint8), _over(local), operation).to(made.dtype)  # type: ignore[arg-type]


def variance(local: Local) -> Tensor:
    """Returns the variance or standard deviation over all shards, from their common mean.

    Args: `local` has this rank's part.
    Returns: values, whole along the axes that are reduced.
    """
    over = _over(local)
    if not over:
        return local.run()
    x = local.tensor("self")
    dims, keep = local.call.dims("dim", x.dim()), local.call.flag("keepdim")
    whole, part = local.share(_reduced_source(local))
    elements = x.numel() * whole // part
    for dim in range(x.dim()):
        if dim not in dims:
            elements //= x.shape[dim]
    centre = summed(x.sum(dims, keepdim=True), local.mesh, over) / elements
    squares = (x - enter(centre, local.mesh, over)).square().sum(dims, keepdim=keep)
    found = summed(squares, local.mesh, over) / max(elements - _correction(local), 0)
    return found.sqrt() if local.call.operation == "aten.std" else found


def _correction(local: Local) -> float:
    given = local.arguments.get("correction", local.arguments.get("unbiased"))
    return 1 if given is None else float(given)  # type: ignore[arg-type]


def norm(local: Local) -> Tensor:
    """Returns the vector norm over all shards, as the norm of their norms.

    Args: `local` has this rank's part.
    Returns: values, whole along the axes that are reduced.
    """
    over = _over(local)
    if not over:
        return local.run()
    parts = stacked(local.run(), local.mesh, over)
    order = local.call.get("ord", 2)
    assert isinstance(order, int | float)
    result: Tensor = torch.linalg.vector_norm(parts, float(order), 0)
    return result


KERNELS: Final[Mapping[str, Kernel]] = {
    "aten.sum": total,
    "aten.mean": mean,
    "aten.amax": extreme,
    "aten.amin": extreme,
    "aten.max": extreme,
    "aten.min": extreme,
    "aten.any": some,
    "aten.all": some,
    "aten.var": variance,
    "aten.std": variance,
    "aten.linalg_vector_norm": norm,
} | dict.fromkeys(
    ("aten.argmax", "aten.argmin", "aten.logsumexp", "aten.prod", "aten.softmax", "aten.log_softmax"),
    Local.run,
)


NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for the reduction


def cross_entropy(local: Local) -> Tensor:
    """Returns the cross entropy or negative log likelihood over all shards, weighted as torch does.

    Args: `local` has this rank's part of predictions and targets.
    Returns: the loss, whole on each rank; without reduction this rank's part.
    """
    return _combined(local, _weight_counted)


def elementwise(local: Local) -> Tensor:
    """Returns a loss that takes each element for itself, reduced over all shards.

    Args: `local` has this rank's part of predictions and targets.
    Returns: the loss, whole on each rank; without reduction this rank's part.
    """
    return _combined(local, lambda local: torch.tensor(float(local.tensor("self").numel())))


def _combined(local: Local, counted: Kernel) -> Tensor:
    reduction = local.call.integer("reduction", MEAN)
    if reduction == NONE:
        return local.run()
    own = local.run(reduction=SUM)
    count = counted(local)
    assert isinstance(count, Tensor)
    both = torch.stack([own.double(), count.detach().to(own.device, torch.float64)])
    found, elements = summed(both, local.mesh, local.step.axes).unbind()
    return (found if reduction == SUM else found / elements).to(own.dtype)


def _weight_counted(local: Local) -> Tensor:
    """Returns what the mean divides by: the weight of the classes that count, or the number of positions."""
    x, target = local.tensor("self"), local.tensor("target")
    if target.is_floating_point():
        return torch.tensor(float(x.numel() // x.shape[1]))
    counts = target.ne(local.call.integer("ignore_index"))
    weight = local.arguments["weight"]
    if not isinstance(weight, Tensor):
        return counts.sum()
    return weight[target.masked_fill(~counts, 0)].masked_fill(~counts, 0).sum()


LOSS_KERNELS: Final[Mapping[str, Kernel]] = {
    "aten.cross_entropy_loss": cross_entropy,
    "aten.nll_loss_nd": cross_entropy,
} | {f"aten.{name}": elementwise for name in LOSSES}
