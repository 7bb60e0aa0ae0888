"""Sums whose numbers are added up in the order of ranks, wherever they lie in their buffer.

A ring adds the numbers of a buffer in an order that depends on which part of the buffer they lie in. The same
gradient in another buffer, as when a stage is cut into parts, then has another sum in its last bits. Here every rank
adds up one part of the buffer, the first rank's numbers first, and hands it to the others: as many bytes as a ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.world import Rail

PIECE = 2**22  # elements at a time; as many are held meanwhile


def add_up(buffer: Tensor, group: Rail) -> None:
    """Sums a buffer over a group in place, each element in the order of ranks; collective.

    Args: `buffer` is dense, of one dim, on the host.
    """
    buffer = _real(buffer)
    ranks, here = group.size(), group.rank()
    for piece in torch.split(buffer, PIECE):
        sizes = [len(part) for part in torch.tensor_split(piece, ranks)]
        mine = [sizes[here]] * ranks
        shares = piece.new_empty(sum(mine))
        group.alltoall_base(shares, piece, mine, sizes).wait()
        total, *others = shares.view(ranks, sizes[here])
        for share in others:
            total.add_(share)
        for share in others:
            share.copy_(total)
        group.alltoall_base(piece, shares, sizes, mine).wait()


def add_up_parts(buffer: Tensor, parts: Sequence[tuple[int, int]], group: Rail) -> None:
    """Sums each part of a buffer on one rank, each element in the order of ranks; collective.

    Half as many bytes as `add_up` are sent. The other parts of the buffer stay addends.
    Args: `buffer` is dense, of one dim, on the host; `parts` has start and end of the part of each rank.
    """
    if buffer.is_complex():
        buffer, parts = _real(buffer), [(2 * start, 2 * end) for start, end in parts]
    ranks, here = group.size(), group.rank()
    step = PIECE // ranks
    for first in range(0, max(end - start for start, end in parts), step):
        spans = [(min(start + first, end), min(start + first + step, end)) for start, end in parts]
        sizes = [end - start for start, end in spans]
        shares = buffer.new_empty(ranks * sizes[here])
        sent = torch.cat([buffer[start:end] for start, end in spans])
        group.alltoall_base(shares, sent, [sizes[here]] * ranks, sizes).wait()
        total, *others = shares.view(ranks, sizes[here])
        for share in others:
            total.add_(share)
        buffer[slice(*spans[here])].copy_(total)


def _real(buffer: Tensor) -> Tensor:
    """Returns a buffer as real numbers: gloo exchanges no complex ones."""
    return torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer
