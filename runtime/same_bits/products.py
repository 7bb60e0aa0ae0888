"""Products of matrices, each column of which is made as if it were alone."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK: Final = 384  # columns of a product, a multiple of what the kernels of libraries take at once


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
