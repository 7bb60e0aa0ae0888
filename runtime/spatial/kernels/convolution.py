"""Convolutions on rows that were fetched with their halo: no padding is left along a cut dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.spatial import Call, Step, front_padding
from runtime.spatial.operation import Kernel, Local

ATEN = torch.ops.aten
PLAIN: Final = {1: ATEN.conv1d.default, 2: ATEN.conv2d.default, 3: ATEN.conv3d.default}


class Plain(NamedTuple):
    """The arguments of torch's convolution behind input, weight and bias."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


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


class InferredConvolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has kernels of convolutions depend neither on the number of rows nor on that of threads, in a `with` block.

    For few rows torch takes a loop that is ten times slower than oneDNN, which it takes for many; and over single
    voxels it takes a matrix product on one thread and oneDNN on several. So the numbers of a box would depend on how
    many workers share a machine. In other types than single precision, and on other devices, torch chooses. Gradients
    are not to be asked for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Returns what an operation gives."""
        if func is not ATEN.convolution.default:
            return func(*args, **(kwargs or {}))
        x, weight, bias, *given, transposed, _, groups = args
        if x.device.type == "cpu" and not by_onednn(x, weight):
            return _of_several_voxels(func, args)
        if transposed or not by_onednn(x, weight):
            return func(*args)
        count = weight.dim() - 2
        stride, padding, dilation = (list(v) * (count if len(v) == 1 else 1) for v in given)
        if prod(weight.shape[2:]) > 1 or groups > 1 or max(stride) > 1 or any(padding):
            return ATEN.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)
        made = (weight.flatten(1) @ x.flatten(2)).unflatten(2, x.shape[2:])
        return made if bias is None else made.add_(bias.view(-1, *[1] * count))


def _of_several_voxels(func: Any, args: tuple[Any, ...]) -> Tensor:
    """Returns a convolution by a matrix product that never is one of a matrix and a vector.

    The product with a vector adds up in another order, so a box of a single voxel would differ in its last bit.
    """
    x, transposed = args[0], args[6]
    made: Tensor = func(*args)
    if prod((x if transposed else made).shape[2:]) > 1:
        return made
    wider = torch.cat([x, torch.zeros_like(x)], -1)
    found: Tensor = func(wider, *args[1:])
    return found.narrow(-1, 0, made.shape[-1])


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Returns whether oneDNN takes a convolution."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    onednn = bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]
    return plain and onednn and x.numel() > 0


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
CONVOLUTIONS: Final = (convolution, transposed)
