"""Convolutions on rows that were fetched with their halo: no padding is left along a cut dimension."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.spatial import Call, Step, front_padding
from runtime.spatial.operation import Kernel, Local

ATEN = torch.ops.aten
BLOCK: Final = 384  # columns of a product, a multiple of what the kernels of libraries take at once
SLAB: Final = 2**22  # numbers of a convolution's input that are laid out as columns at a time
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


class InferredProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has convolutions and linear layers depend neither on the number of rows nor on that of threads, in a `with` block.

    In single precision oneDNN takes all of them. For few rows torch takes a loop that is ten times slower; and over
    single voxels it takes a matrix product on one thread and oneDNN on several. So the numbers of a box would depend on
    how many workers share a machine. In double precision, and where there is no oneDNN, every number is added up in one
    order, whatever rows stand around it. In other types, and on other devices, torch chooses. Gradients are not to be
    asked for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Returns what an operation gives."""
        if func is ATEN.mm.default and by_blocks(args[0]):
            return in_blocks(args[1].t(), args[0].t()).t()
        if func is ATEN.addmm.default and not kwargs and by_blocks(args[1]):
            return in_blocks(args[2].t(), args[1].t()).t() + args[0]
        if func is not ATEN.convolution.default:
            return func(*args, **(kwargs or {}))
        x, weight, bias, *given, transposed, extra, groups = args
        count = weight.dim() - 2
        stride, padding, dilation = (list(v) * (count if len(v) == 1 else 1) for v in given)
        if by_blocks(x):
            way = Plain(stride, padding, dilation, groups)
            made = _spread(x, weight, way, extra) if transposed else _convolved(x, weight, way)
            return made if bias is None else made.add_(bias.view(-1, *[1] * count))
        if transposed or not by_onednn(x, weight):
            return func(*args)
        if prod(weight.shape[2:]) > 1 or groups > 1 or max(stride) > 1 or any(padding):
            return ATEN.mkldnn_convolution(x, weight, bias, padding, stride, dilation, groups)
        made = (weight.flatten(1) @ x.flatten(2)).unflatten(2, x.shape[2:])
        return made if bias is None else made.add_(bias.view(-1, *[1] * count))


def by_blocks(x: Tensor) -> bool:
    """Returns whether products with a tensor are taken in blocks of one size."""
    if x.device.type != "cpu" or not x.numel():
        return False
    return x.dtype == torch.float64 or (x.dtype == torch.float32 and not onednn())


def in_blocks(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the product of two matrices, each column of which is made as if it were alone.

    A library of matrix products takes other kernels for other sizes, and these add up in other orders. So it is asked
    for one size alone, at addresses that are equally round. `_alike` looks whether the columns of a block are made
    alike.

    Args: `rows` are those of a weight, [made, summed]; `columns` are [summed, place].
    Returns: [made, place].
    """
    (made, summed), places = rows.shape, columns.shape[1]
    blocks = -(-places // BLOCK)
    wide = F.pad(columns, (0, blocks * BLOCK - places)).view(summed, blocks, BLOCK)
    wide, rows = wide.transpose(0, 1).contiguous(), rows.clone(memory_format=torch.contiguous_format)
    found = wide.new_empty(blocks, made, BLOCK)
    multiply = torch.mm if _alike(made, summed, rows.dtype, torch.get_num_threads()) else _in_turn
    for block, into in zip(wide, found, strict=True):
        multiply(rows, block, out=into)
    return found.transpose(0, 1).flatten(1).narrow(1, 0, places)


@cache
def _alike(made: int, summed: int, dtype: torch.dtype, threads: int) -> bool:
    """Returns whether a block's product gives equal columns for equal columns, wherever they stand."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(4):
        rows, column = (
            torch.randn(shape, generator=draw, dtype=dtype, device="cpu")
            for shape in ((made, summed), (summed, 1))
        )
        found = torch.mm(rows, column.expand(-1, BLOCK).contiguous())
        if not torch.equal(found, found[:, :1].expand_as(found)):
            return False
    return True


def _in_turn(rows: Tensor, columns: Tensor, *, out: Tensor) -> Tensor:
    """Puts a product together term by term, which is slow and has the same order on every processor."""
    out.zero_()
    for row, column in zip(rows.t().unsqueeze(2), columns, strict=True):
        out.add_(row * column)
    return out


def _convolved(x: Tensor, weight: Tensor, way: Plain) -> Tensor:
    """Returns a convolution by products in blocks, a slab of the output after the other."""
    count, n = weight.dim() - 2, x.shape[0]
    x = F.pad(x, [p for p in reversed(way.padding) for _ in range(2)])
    for dim, (kernel, stride, dilation) in enumerate(
        zip(weight.shape[2:], way.stride, way.dilation, strict=True), 2
    ):
        x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    space, kernels = range(2, count + 2), range(count + 2, 2 * count + 2)
    patches = x.permute(1, *kernels, 0, *space)  # [channel, kernel..., sample, space...]
    first, kinds = count + 2, weight.flatten(1).chunk(way.groups)
    slab = max(1, SLAB * patches.shape[first] // patches.numel())
    made = []
    for part in patches.split(slab, first):  # type: ignore[no-untyped-call]
        groups = zip(kinds, part.chunk(way.groups), strict=True)
        found = torch.cat([in_blocks(rows, group.reshape(rows.shape[1], -1)) for rows, group in groups])
        made.append(found.view(-1, n, *part.shape[first:]))
    return torch.cat(made, 2).transpose(0, 1).contiguous()


def _spread(x: Tensor, weight: Tensor, way: Plain, extra: Sequence[int]) -> Tensor:
    """Returns a transposed convolution: products in blocks, added up in the order of the kernel's places.

    Args: `extra` has the rows that are made behind the last one that an input reaches.
    """
    kernel, space = weight.shape[2:], x.shape[2:]
    groups = zip(weight.flatten(2).chunk(way.groups), x.transpose(0, 1).chunk(way.groups), strict=True)
    found = torch.cat([in_blocks(rows.flatten(1).t(), group.flatten(1)) for rows, group in groups])
    terms = found.view(-1, *kernel, x.shape[0], *space)
    spans = [(n - 1) * s + 1 for n, s in zip(space, way.stride, strict=True)]
    reach = [span + d * (k - 1) for span, d, k in zip(spans, way.dilation, kernel, strict=True)]
    sizes = [n - 2 * p + int(e) for n, p, e in zip(reach, way.padding, extra, strict=True)]
    held = [max(n, p + size) for n, p, size in zip(reach, way.padding, sizes, strict=True)]
    total = x.new_zeros(terms.shape[0], x.shape[0], *held)
    for place in itertools.product(*map(range, kernel)):
        starts = [at * d for at, d in zip(place, way.dilation, strict=True)]
        rows = [slice(a, a + n, s) for a, n, s in zip(starts, spans, way.stride, strict=True)]
        one: tuple[slice | int, ...] = (slice(None), *place)
        total[(slice(None), slice(None), *rows)] += terms[one]
    inside = [slice(p, p + size) for p, size in zip(way.padding, sizes, strict=True)]
    return total[(slice(None), slice(None), *inside)].transpose(0, 1).contiguous()


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Returns whether oneDNN takes a convolution."""
    plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return plain and onednn() and x.numel() > 0


def onednn() -> bool:
    """Returns whether torch has oneDNN, and may use it."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]


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
INFERRED: Final = {*KERNELS, "aten.linear"}  # operations whose products `InferredProducts` takes
