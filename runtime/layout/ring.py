"""Attention whose queries, keys and values are cut along the sequence: keys and values go round the ranks of an axis.

Each rank holds its rows of the query. In every round it has the keys and values of one rank, adds what its queries make
of them, and hands them on. Softmax over all keys comes from the sums and the largest scores of the rounds. Backward,
the gradients of keys and values travel with them, and end where they belong.

Causal attention has most work for the last rows. So ranks exchange rows for the time of the attention: of twice as many
chunks as there are ranks, each has one from the front and one from the end (zigzag).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from runtime.layout.moves import CutGroup

_HALVES = (torch.float16, torch.bfloat16)


class Chunk(NamedTuple):
    """Rows of the whole sequence that lie one after the other."""

    start: int
    rows: int


class Block(NamedTuple):
    """Two chunks that meet: rows of the query here, those of keys and values here, and of all keys."""

    rows: slice
    columns: slice
    keys: slice
    later: Tensor | None  # which keys come after a query, where some do and it must not see them


@dataclass(frozen=True)
class Ring:
    """The ranks of an axis as a ring, seen from one of them; `points` cut the sequence."""

    group: CutGroup
    axis: int
    points: tuple[int, ...]
    causal: bool

    @cached_property
    def members(self) -> list[int]:
        """Returns the ranks of the ring in their order."""
        return [rank for rank, _ in self.group.along(self.axis)]

    @property
    def place(self) -> int:
        """Returns this rank's place in the ring."""
        return self.group.position[self.axis]

    @cached_property
    def half(self) -> int:
        """Returns the rows of a chunk of the zigzag; 0 where rows stay as they lie."""
        rows, ranks = self.points[-1], len(self.members)
        even = all(point * ranks == rows * i for i, point in enumerate(self.points))
        return rows // (2 * ranks) if self.causal and even and rows % (2 * ranks) == 0 else 0

    def chunks(self, place: int) -> list[Chunk]:
        """Returns the rows that a rank attends with.

        Args: `place` is the rank's in the ring.
        """
        if self.half:
            return [Chunk(i * self.half, self.half) for i in self._folded[place]]
        return [Chunk(self.points[place], self.points[place + 1] - self.points[place])]

    @cached_property
    def _folded(self) -> list[list[int]]:
        last = 2 * len(self.members) - 1
        return [[place, last - place] for place in range(len(self.members))]

    @cached_property
    def _lying(self) -> list[list[int]]:
        return [[2 * place, 2 * place + 1] for place in range(len(self.members))]

    def folded(self, x: Tensor) -> Tensor:
        """Returns the rows that this rank attends with, from those that it holds."""
        return self._rearranged(x, self._lying, self._folded) if self.half else x.contiguous()

    def unfolded(self, x: Tensor) -> Tensor:
        """Returns the rows that this rank holds, from those that it attends with."""
        return self._rearranged(x, self._folded, self._lying) if self.half else x

    def _rearranged(self, x: Tensor, held: Sequence[list[int]], wanted: Sequence[list[int]]) -> Tensor:
        mine, own = self.place, dict(zip(held[self.place], torch.split(x, self.half, -2), strict=True))
        others = [place for place in range(len(self.members)) if place != mine]
        sends = [
            (self.members[to], torch.cat([own[i] for i in wanted[to] if i in own], -2).contiguous())
            for to in others
            if own.keys() & set(wanted[to])
        ]
        coming = {
            place: found for place in others if (found := [i for i in wanted[mine] if i in held[place]])
        }
        got = {
            place: x.new_empty((*x.shape[:-2], len(numbers) * self.half, x.shape[-1]))
            for place, numbers in coming.items()
        }
        with self.group.watch.running():
            self.group.wire.exchange(sends, [(self.members[place], y) for place, y in got.items()])()
        for place, numbers in coming.items():
            own |= dict(zip(numbers, torch.split(got[place], self.half, -2), strict=True))
        return torch.cat([own[i] for i in wanted[mine]], -2)

    def source(self, turn: int) -> int:
        """Returns the place of the rank whose keys and values this rank has in a round."""
        return (self.place - turn) % len(self.members)

    def passed(self, tensors: Sequence[Tensor], turn: int) -> Callable[[], list[Tensor]]:
        """Hands what is of one rank on to the next rank.

        Args: `tensors` have the rows of the rank whose turn it is, along their last dimension but one.
        Returns: a function that waits for what the rank before hands on, and gives it.
        """
        ranks, rows = len(self.members), sum(chunk.rows for chunk in self.chunks(self.source(turn + 1)))
        ahead, behind = (self.members[(self.place + step) % ranks] for step in (1, -1))
        found = [x.new_empty((*x.shape[:-2], rows, x.shape[-1])) for x in tensors]
        wait = self.group.wire.exchange(
            [(ahead, x.contiguous()) for x in tensors], [(behind, x) for x in found]
        )

        def done() -> list[Tensor]:
            with self.group.watch.running():
                wait()
            return found

        return done

    def blocks(self, turn: int) -> Iterator[Block]:
        """Yields the pairs of chunks that meet in a round.

        Args: `turn` counts the rounds from 0.
        """
        queries, low = self.chunks(self.place), 0
        for query in queries:
            first = 0
            for key in self.chunks(self.source(turn)):
                if not self.causal or key.start < query.start + query.rows:
                    yield Block(
                        slice(low, low + query.rows),
                        slice(first, first + key.rows),
                        slice(key.start, key.start + key.rows),
                        self._hidden(query, key),
                    )
                first += key.rows
            low += query.rows

    def _hidden(self, query: Chunk, key: Chunk) -> Tensor | None:
        if not self.causal or key.start + key.rows <= query.start + 1:
            return None
        own = torch.arange(query.start, query.start + query.rows)
        return torch.arange(key.start, key.start + key.rows) > own.unsqueeze(1)


class _Context(FunctionCtx):
    ring: Ring
    scale: float
    saved_tensors: tuple[Tensor, ...]


class _RingAttention(torch.autograd.Function):
    """Tensors have a dimension of queries that share a key in front of their rows."""

    @staticmethod
    def forward(
        ctx: _Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ring: Ring, scale: float
    ) -> Tensor:
        q, k, v = (ring.folded(x) for x in (q, k, v))
        if mask is not None and mask.shape[-2] > 1:
            mask = ring.folded(mask)
        made = q.new_zeros((*q.shape[:-1], v.shape[-1]))
        total, highest = q.new_zeros((*q.shape[:-1], 1)), q.new_full((*q.shape[:-1], 1), float("-inf"))
        travelling = [k, v]
        for turn in range(len(ring.members)):
            last = turn == len(ring.members) - 1
            arriving = None if last else ring.passed(travelling, turn)
            keys, values = travelling
            for block in ring.blocks(turn):
                rows = block.rows
                scores = _scores(q[..., rows, :], keys[..., block.columns, :], scale, block, mask)
                most = torch.maximum(highest[..., rows, :], scores.amax(-1, keepdim=True))
                least = most.masked_fill(most.isinf(), 0.0)  # of rows that have seen no key so far
                before = (highest[..., rows, :] - least).exp()
                weights = scores.sub_(least).exp_()
                total[..., rows, :] = total[..., rows, :] * before + weights.sum(-1, keepdim=True)
                made[..., rows, :] = made[..., rows, :] * before + weights @ values[..., block.columns, :]
                highest[..., rows, :] = most
            travelling = arriving() if arriving is not None else travelling
        unseeing = total == 0  # a row that sees no key makes zeros
        made /= total.masked_fill_(unseeing, 1.0)
        ctx.ring, ctx.scale = ring, scale
        logs = highest.masked_fill_(unseeing, 0.0) + total.log()
        ctx.save_for_backward(q, k, v, made, logs, *([] if mask is None else [mask]))
        return ring.unfolded(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        ring, scale, (q, k, v, made, logs, *masks) = ctx.ring, ctx.scale, ctx.saved_tensors
        mask = masks[0] if masks else None
        grad = ring.folded(grad)
        owed = (grad * made).sum(-1, keepdim=True)
        back, travelling = torch.zeros_like(q), [k, v]
        sums = [torch.zeros_like(k), torch.zeros_like(v)]
        for turn in range(len(ring.members)):
            last = turn == len(ring.members) - 1
            arriving = None if last else ring.passed(travelling, turn)
            keys, values = travelling
            for block in ring.blocks(turn):
                rows, columns = block.rows, block.columns
                own, key, value = q[..., rows, :], keys[..., columns, :], values[..., columns, :]
                weights = _scores(own, key, scale, block, mask).sub_(logs[..., rows, :]).exp_()
                there = grad[..., rows, :]
                sums[1][..., columns, :] += (weights.mT @ there).sum(-3, keepdim=True)
                errors = weights.mul_(there @ value.mT - owed[..., rows, :]).mul_(scale)
                back[..., rows, :] += errors @ key
                sums[0][..., columns, :] += (errors.mT @ own).sum(-3, keepdim=True)
            travelling = arriving() if arriving is not None else travelling
            sums = ring.passed(sums, turn)()  # what was sent first is received first
        return ring.unfolded(back), *(ring.unfolded(x) for x in sums), None, None, None


def _scores(query: Tensor, key: Tensor, scale: float, block: Block, mask: Tensor | None) -> Tensor:
    found = (query @ key.mT).mul_(scale)
    if block.later is not None:
        found.masked_fill_(block.later.to(found.device), float("-inf"))
    if mask is None:
        return found
    seen = (mask if mask.shape[-2] == 1 else mask[..., block.rows, :])[..., block.keys]
    return found.masked_fill_(~seen, float("-inf")) if seen.dtype == torch.bool else found.add_(seen)


def ring_attention(
    query: Tensor, key: Tensor, value: Tensor, ring: Ring, scale: float | None, mask: Tensor | None
) -> Tensor:
    """Returns attention for this rank's rows of the query, over the keys and values of all ranks of a ring.

    Args: the first three have rows before a last dimension, and heads before rows; several heads of the query may share
        one of the keys. `scale` multiplies the scores; None is one over the root of the last dimension. `mask` has this
        rank's rows, for all keys; it is what may be seen, or what is added to the scores.
    """
    kind, given = query.device.type, query.dtype
    if torch.is_autocast_enabled(kind) and given != torch.float64:  # which autocast leaves as it is
        given = torch.get_autocast_dtype(kind)
        query, key, value = (x.to(given) for x in (query, key, value))
    wide = torch.float32 if given in _HALVES else given
    shared = query.shape[-3] // key.shape[-3]
    own = torch.unflatten(query, -3, (-1, shared))
    keys, values = (x.unsqueeze(-3) for x in (key, value))
    if mask is not None and mask.ndim > 2:
        mask = torch.unflatten(mask, -3, (-1, shared)) if mask.shape[-3] > 1 else mask.unsqueeze(-3)
    if mask is not None and mask.shape[-1] == 1:
        mask = mask.expand(*mask.shape[:-1], ring.points[-1])
    with torch.autocast(kind, enabled=False):
        made: Tensor = _RingAttention.apply(  # type: ignore[no-untyped-call]
            *(x.to(wide) for x in (own, keys, values)),
            mask,
            ring,
            query.shape[-1] ** -0.5 if scale is None else scale,
        )
    return made.flatten(-4, -3).to(given)
