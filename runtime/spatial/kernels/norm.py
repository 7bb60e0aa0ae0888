"""Normalisation over a sample that several ranks share: one packed exchange of statistics each way.

Every rank sends the mean and variance of its part. The parts are combined by their counts, which all ranks
know, so that no large sums cancel. Backward two sums a group are added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.capture import Target, named_arguments, share_of_latest
from planner.spatial import coordinates
from runtime.spatial.group import SampleGroup
from runtime.spatial.operation import Arguments, Kernel, Local, call_named


class Groups(NamedTuple):
    """A tensor seen as (sample, group, channel of the group, space...), and what statistics are taken over."""

    number: int  # of groups a sample
    dims: tuple[int, ...]  # of that view, reduced
    weights: tuple[float, ...]  # share of each member in what is reduced
    elements: int  # that a statistic is taken over, on all ranks
    axes: frozenset[int]
    eps: float


def _view(x: Tensor, groups: Groups) -> Tensor:
    return x.view(x.shape[0], groups.number, -1, *x.shape[2:])


def _affine(weight: Tensor | None, groups: Groups, ndim: int) -> Tensor | None:
    return None if weight is None else weight.view(groups.number, -1, *[1] * (ndim - 3))


class _Context(FunctionCtx):
    mesh: SampleGroup
    groups: Groups
    has: tuple[bool, bool]
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: Groups,
        mesh: SampleGroup,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = _wide(x)
        xs = _view(wide, groups)
        mean, variance = _statistics(xs, groups, mesh)
        scale = inverse = torch.rsqrt(variance + groups.eps)
        w, b = (_affine(p, groups, xs.dim()) for p in (weight, bias))
        if w is not None:
            scale = inverse * w
        shift = -mean * scale if b is None else b - mean * scale
        y = (xs * scale).add_(shift).flatten(1, 2).to(x.dtype)
        ctx.mesh, ctx.groups, ctx.has = mesh, groups, (weight is not None, bias is not None)
        ctx.save_for_backward(x, mean, inverse, *([] if weight is None else [weight]))
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dy: Tensor, *_: Tensor) -> tuple[Any, ...]:
        x, mean, inverse, *rest = ctx.saved_tensors
        groups = ctx.groups
        weight = rest[0] if rest else None
        xs, dys = _view(_wide(x), groups), _view(_wide(dy), groups)
        by_channel, by_channel_x = _channel_sums(dys, xs, mean, inverse)
        w = _affine(weight, groups, xs.dim())
        inner = tuple(dim for dim in groups.dims if dim < 3)
        sums = [
            (part if w is None else part * w).sum(inner, keepdim=True) for part in (by_channel, by_channel_x)
        ]
        total, total_x = ctx.mesh.reduce(torch.stack(sums), groups.axes) / groups.elements
        scale, slope = inverse if w is None else inverse * w, -inverse * inverse * total_x
        dx = torch.addcmul(-inverse * total - slope * mean, xs, slope).addcmul_(dys, scale)
        shape = None if weight is None else weight.shape
        dw = by_channel_x.sum(0).reshape(shape).to(weight.dtype) if weight is not None and shape else None
        db = by_channel.sum(0).reshape(-1).to(dy.dtype) if ctx.has[1] else None
        return dx.flatten(1, 2).to(x.dtype), dw, db, None, None


def _channel_sums(dys: Tensor, xs: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sums over space of a gradient, and of it times what was normalised, in one pass over both.

    Returns: (sample, group, channel, 1...) of the views given.
    """
    rows = xs.shape[:3]
    flat = [part.expand(*rows, *[1] * (part.dim() - 3)).reshape(-1) for part in (mean, inverse)]
    given = [part.reshape(1, prod(rows), -1) for part in (dys, xs)]
    _, by_x, by_y = torch.ops.aten.native_batch_norm_backward(
        *given, None, None, None, *flat, True, 0.0, [False, True, True]
    )
    shape = *rows, *[1] * (xs.dim() - 3)
    return by_y.view(shape), by_x.view(shape)


def _wide(x: Tensor) -> Tensor:
    """Returns half precision as single precision, in which its statistics are taken."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _statistics(xs: Tensor, groups: Groups, mesh: SampleGroup) -> tuple[Tensor, Tensor]:
    own_mean = xs.mean(groups.dims, keepdim=True)
    own_variance = (
        (xs - own_mean).square_().mean(groups.dims, keepdim=True)
    )  # torch.var_mean takes 15 times as long
    parts = mesh.stacked(torch.stack([own_variance, own_mean]), groups.axes)
    shares = torch.tensor(groups.weights, dtype=xs.dtype, device=xs.device).view(-1, *[1] * xs.dim())
    variances, means = parts[:, 0], parts[:, 1]
    mean = (means * shares).sum(0)
    variance = ((variances + (means - mean).square()) * shares).sum(0)
    return mean, variance


def _groups(local: Local, count: int, per_sample: bool) -> Groups:
    source, mesh = local.call.tensor("input"), local.mesh
    axes = local.step.axes
    members = [coordinates(rank, mesh.grid) for rank in mesh.members(axes)]
    sizes = [prod(source.local_shape(place)) for place in members]
    x = local.tensor("input")
    whole, part = local.share(source)
    local_elements = x.numel() // count // (x.shape[0] if per_sample else 1)
    first = 2 if per_sample else 0
    dims = tuple(dim for dim in range(first, x.dim() + 1) if dim != 1)
    eps = local.arguments["eps"]
    assert isinstance(eps, float)
    weights = tuple(size / sum(sizes) for size in sizes)
    return Groups(count, dims, weights, local_elements * whole // part, axes, eps)


def _normalised(arguments: Arguments, groups: Groups, mesh: SampleGroup) -> tuple[Tensor, Tensor, Tensor]:
    weight, bias = (arguments.get(name) for name in ("weight", "bias"))
    made: tuple[Tensor, Tensor, Tensor] = _Normalise.apply(  # type: ignore[no-untyped-call]
        arguments["input"], weight, bias, groups, mesh
    )
    return made


def batch_norm(local: Local) -> Tensor:
    """Normalises over the batch and over all shards; keeps running statistics as one process would.

    Args: `local` has this rank's part, weight and bias, and the running statistics, which change in place.
    Returns: this rank's part of the output.
    """
    if not local.arguments["training"]:
        return local.run()
    groups = _groups(local, local.tensor("input").shape[1], per_sample=False)
    return _normalised_and_remembered(local.arguments, groups, local.mesh)


@dataclass(frozen=True)
class OverReplicas:
    """Batch normalisation over the samples of all replicas of a group, each of which has as many."""

    target: Target
    mesh: SampleGroup

    def __call__(self, *args: object) -> Tensor:
        given = named_arguments(self.target, args, {})
        if not given["training"]:
            return call_named(self.target, given)
        x, eps = given["input"], given["eps"]
        assert isinstance(x, Tensor) and isinstance(eps, float)
        members, channels = self.mesh.wire.size, x.shape[1]
        dims = tuple(dim for dim in range(x.dim() + 1) if dim != 1)
        elements = x.numel() // channels * members
        groups = Groups(channels, dims, (1 / members,) * members, elements, frozenset({0}), eps)
        return _normalised_and_remembered(given, groups, self.mesh)


def instance_norm(local: Local) -> Tensor:
    """Normalises each sample and channel over all shards.

    Args: `local` has this rank's part, weight and bias, and the running statistics, which change in place.
    Returns: this rank's part of the output.
    """
    if not local.arguments["use_input_stats"]:
        return local.run()
    groups = _groups(local, local.tensor("input").shape[1], per_sample=True)
    return _normalised_and_remembered(local.arguments, groups, local.mesh)


def _normalised_and_remembered(arguments: Arguments, groups: Groups, mesh: SampleGroup) -> Tensor:
    y, mean, variance = _normalised(arguments, groups, mesh)
    _remember(arguments, mean, variance, groups.elements)
    return y


def _remember(arguments: Arguments, mean: Tensor, variance: Tensor, elements: int) -> None:
    """Updates running statistics as one process does: they are the same on every rank.

    Autograd does not see the change, since it may have kept them for an earlier normalisation of a whole
    tensor.
    """
    count = arguments.get("count")
    momentum = share_of_latest(count) if isinstance(count, Tensor) else arguments["momentum"]
    assert isinstance(momentum, float)
    unbiased = variance * (elements / (elements - 1)) if elements > 1 else variance
    for name, value in (("running_mean", mean), ("running_var", unbiased)):
        running = arguments.get(name)
        if isinstance(running, Tensor):
            found = value.flatten(1).mean(0) if value.shape[0] > 1 else value.flatten()
            running.data.mul_(1 - momentum).add_(found.to(running.dtype), alpha=momentum)


def group_norm(local: Local) -> Tensor:
    """Normalises groups of channels of each sample over all shards.

    Args: `local` has this rank's part, weight and bias.
    Returns: this rank's part of the output.
    """
    groups = _groups(local, local.call.integer("num_groups"), per_sample=True)
    return _normalised(local.arguments, groups, local.mesh)[0]


KERNELS: Final[Mapping[str, Kernel]] = {
    "aten.batch_norm": batch_norm,
    "aten.instance_norm": instance_norm,
    "aten.group_norm": group_norm,
    "aten.layer_norm": Local.run,
    "aten.rms_norm": Local.run,
}
