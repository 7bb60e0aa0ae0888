"""Convolutions on rows that were fetched with their halo: no padding is left along a cut dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from planner.spatial import Call, Step, front_padding
from runtime.same_bits import Plain
from runtime.spatial.operation import Kernel, Local

ATEN = torch.ops.aten
PLAIN: Final = {1: ATEN.conv1d.default, 2: ATEN.conv2d.default, 3: ATEN.conv3d.default}


def plain_arguments(call: Call, step: Step) -> Plain | None:
    """Returns the arguments of an ordinary convolution whose input was fetched with its halo.

    Args: `call` is the captured convolution; `step` is what its rule decided.
    Returns: None where the padding left to torch differs between front and back.
    """
    weight = call.tensor("weight").shape
    count = len(weight) - 2
    kernel, dilation = weight[2:], call.integers("dilation", count, (1,))
    front = front_padding(call, kernel, dilation)
    behind = _behind(call, kernel, dilation, front)
    cut = {dim - (len(step.output.shape) - count) for dim in step.output.cut_dims}
    if any(a != b for i, (a, b) in enumerate(zip(front, behind, strict=True)) if i not in cut):
        return None
    padding = [0 if i in cut else p for i, p in enumerate(front)]
    stride = call.integers("stride", count, (1,))
    return Plain(list(stride), padding, list(dilation), call.integer("groups", 1))


def convolution(local: Local) -> Tensor:
    """Convolves fetched rows; adds zeros where the padding of an even kernel is uneven.

    Args: `local` has the fetched input, the weight and the bias.
    Returns: this rank's rows of the output.
    """
    x, weight = local.tensor("input"), local.tensor("weight")
    count = weight.dim() - 2
    kernel, dilation = tuple(weight.shape[2:]), local.call.integers("dilation", count, (1,))
    pad = front_padding(local.call, kernel, dilation)
    behind = _behind(local.call, kernel, dilation, pad)
    cut = {dim - (x.dim() - count) for dim in local.step.output.cut_dims}
    front = [0 if i in cut else p for i, p in enumerate(pad)]
    behind = [0 if i in cut else p for i, p in enumerate(behind)]
    if front != behind:  # an even kernel under "same"
        x = F.pad(x, [p for a, b in zip(reversed(front), reversed(behind), strict=True) for p in (a, b)])
        front = [0] * count
    stride = local.call.integers("stride", count, (1,))
    bias, groups = (local.arguments[name] for name in ("bias", "groups"))  # there may be as many as samples
    result: Tensor = PLAIN[count](x, weight, bias, list(stride), front, list(dilation), groups)
    return result


def _behind(call: Call, kernel: Sequence[int], dilation: Sequence[int], pad: Sequence[int]) -> list[int]:
    if call.get("padding") != "same":
        return list(pad)
    return [d * (k - 1) - p for k, d, p in zip(kernel, dilation, pad, strict=True)]


def transposed(local: Local) -> Tensor:
    """Runs a transposed convolution on fetched rows.

    Rows that the fetched part makes too many are dropped; rows that no input row reaches have the bias alone.
    Args: `local` has the fetched input, the weight and the bias.
    Returns: this rank's rows of the output.
    """
    x, weight = local.tensor("input"), local.tensor("weight")
    count = weight.dim() - 2
    first = x.dim() - count
    cut = {dim - first for dim in local.step.output.cut_dims}
    names = ("padding", "output_padding")
    padding, extra = (
        [0 if i in cut else p for i, p in enumerate(local.call.integers(n, count, (0,)))] for n in names
    )
    y = local.run(bias=None, padding=padding, output_padding=extra)
    for dim in local.step.output.cut_dims:
        low, high = local.rows(local.step.output, dim)
        cut_here = local.step.output.cuts[dim]
        assert cut_here is not None
        skip = local.step.skips[dim][local.place(cut_here.axis)]
        y = window(y, dim, skip, high - low)
    bias = local.arguments["bias"]
    return y + bias.view(-1, *[1] * count) if isinstance(bias, Tensor) else y


def window(x: Tensor, dim: int, skip: int, length: int) -> Tensor:
    """Returns rows `skip` to `skip + length` along a dimension, with zeros where there are none.

    Args: `skip` may be negative, and `length` may reach beyond the last row.
    Returns: a view where all rows are there, otherwise a padded copy.
    """
    rows = x.shape[dim]
    low, high = min(max(skip, 0), rows), min(max(skip + length, 0), rows)
    kept = x.narrow(dim, low, max(0, high - low))
    front = min(max(0, -skip), length)
    behind = length - front - kept.shape[dim]
    if not front and not behind:
        return kept
    return F.pad(kept, [0, 0] * (x.dim() - 1 - dim) + [front, behind])


KERNELS: Final[Mapping[str, Kernel]] = {f"aten.conv{n}d": convolution for n in (1, 2, 3)} | {
    f"aten.conv_transpose{n}d": transposed for n in (1, 2, 3)
}
