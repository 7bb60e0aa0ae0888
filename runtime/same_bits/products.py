"""Products of matrices, each column of which is made as if it were alone; and convolutions made of such products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK: Final = 384  # columns of a product, a multiple of what the kernels of libraries take at once
SLAB: Final = 2**22  # numbers of a convolution's input that are laid out as columns at a time


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


def of_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Returns the products of pairs of matrices, which may both depend on the input, term by term.

    Args: `left` is [pair, row, summed], `right` is [pair, summed, column].
    """
    found = left.new_zeros(*left.shape[:2], right.shape[2])
    for column, row in zip(left.unbind(2), right.unbind(1), strict=True):
        found += column.unsqueeze(2) * row.unsqueeze(1)
    return found


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


class Plain(NamedTuple):
    """The arguments of torch's convolution behind input, weight and bias."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolved(x: Tensor, weight: Tensor, way: Plain) -> Tensor:
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


def spread(x: Tensor, weight: Tensor, way: Plain, extra: Sequence[int]) -> Tensor:
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
