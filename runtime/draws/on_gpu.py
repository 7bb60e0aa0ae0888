"""Dropout on a GPU in one kernel: the numbers are made where they are used, in the forward and again in the backward,
so that none is kept. They are those of `numbers.py` to the bit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from torch import Tensor

BLOCK: Final = 1024  # elements of one program
_BY_ROW: Final = 512  # elements of a sample in a row, from which on a program has one sample alone
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _key(sample, stream):  # type: ignore[no-untyped-def]
    """Returns the key of a sample, by its number in the batch."""
    x = (sample + 1).to(tl.uint64) * _GOLDEN + stream
    x ^= x >> 30
    x *= 0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= 0x94D049BB133111EB
    x ^= x >> 31
    return (x >> 32).to(tl.uint32)


@triton.jit(do_not_specialize=["first", "samples_stream", "stream", "least"])  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    x, out, samples, before, rows, between, last, first, samples_stream, stream, least, scale,
    many, high, width, total,
    HAS_BEFORE: tl.constexpr, HAS_ROWS: tl.constexpr, HAS_BETWEEN: tl.constexpr, PLAIN: tl.constexpr,
    BY_ROW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    if BY_ROW:
        row = tl.program_id(1).to(tl.int64) + tl.program_id(2).to(tl.int64) * tl.num_programs(1)
        inner = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        here = (inner < high * width) & (row * high * width < total)
        at = row * high * width + inner
    else:
        at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        here = at < total
        row, inner = at // (high * width), at % (high * width)
    s = row % many
    if PLAIN:
        place = inner  # `between` is empty then
    else:
        place = tl.load(last + inner % width, mask=here, other=0)
    if HAS_BETWEEN:
        place += tl.load(between + inner // width, mask=here, other=0)
    if BY_ROW:
        known = row * high * width < total
        if HAS_BEFORE:
            place += tl.load(before + row // many, mask=known, other=0)
        if HAS_ROWS:
            place += tl.load(rows + s, mask=known, other=0)
        key = _key(tl.load(samples + s, mask=known, other=0) + first, samples_stream.to(tl.uint64))
    else:
        if HAS_BEFORE:
            place += tl.load(before + row // many, mask=here, other=0)
        if HAS_ROWS:
            place += tl.load(rows + s, mask=here, other=0)
        key = _key(tl.load(samples + s, mask=here, other=0) + first, samples_stream.to(tl.uint64))
    number = ((place.to(tl.uint64) * _GOLDEN + stream.to(tl.uint64)) >> 32).to(tl.uint32) ^ key
    number *= 0x7FEB352D
    number ^= number >> 15
    number *= 0x846CA68B
    value = tl.load(x + at, mask=here)
    weight = tl.load(scale)
    factor = tl.where(number.to(tl.int32, bitcast=True) >= least, weight, weight * 0)
    tl.store(out + at, value * factor, mask=here)


class Dropped(torch.autograd.Function):
    """A dropout whose backward makes the same numbers again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Kernel) -> Tensor:
        ctx.kernel = kernel
        return kernel(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.kernel(gradients[0]), None


class Kernel:
    """The dropout of one tensor, or of a rank's part of one, with all that says which numbers are drawn."""

    def __init__(
        self,
        order: tuple[int, ...],
        shape: tuple[int, int, int, int],
        tables: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None],
        streams: tuple[int, int],
        first: int,
        least: int,
        scale: float,
    ) -> None:
        """Takes what the numbers depend on.

        Args: dimensions lie in memory in this `order`, as `shape` elements before those of the samples, of these, and
            behind in two; `tables` have the number of the sample of each row, and the places of elements: of the
            dimensions before, of rows, and of the two behind, each None where it adds nothing; `first` is the number of
            the first sample; an element is kept from `least` on, times `scale`.
        """
        self._order, self._shape, self._tables, self._streams = order, shape, tables, streams
        self._first, self._least, self._scale = first, least, scale
        self._plain = order == tuple(range(len(order)))
        self._back = tuple(order.index(dim) for dim in range(len(order)))

    def __call__(self, x: Tensor) -> Tensor:
        given = (x if self._plain else x.permute(self._order)).contiguous()
        out = torch.empty_like(given)
        deep, many, high, width = self._shape
        samples, before, rows, between, last = self._tables
        inner, lines = high * width, deep * many
        by_row = inner >= _BY_ROW
        wide = min(lines, 1 << 15)
        grid = (
            (triton.cdiv(inner, BLOCK), wide, triton.cdiv(lines, wide))
            if by_row
            else (triton.cdiv(given.numel(), BLOCK),)
        )
        none = samples
        scale = _scale(self._scale, x.dtype, x.device)
        with torch.cuda.device(x.device) if x.is_cuda else torch.device("cpu"):
            _kernel[grid](
                given, out, samples, *(none if each is None else each for each in (before, rows, between, last)),
                self._first, _signed(self._streams[0]), _signed(self._streams[1]), self._least, scale,
                many, high, width, given.numel(),
                HAS_BEFORE=before is not None, HAS_ROWS=rows is not None, HAS_BETWEEN=between is not None,
                PLAIN=last is None, BY_ROW=by_row, SIZE=BLOCK,
            )  # fmt: skip
        return out if self._plain else out.permute(self._back)


@cache
def _scale(scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a factor on the device, since a kernel takes plain numbers as fp32."""
    return torch.tensor(scale, dtype=dtype, device=device)


def _signed(number: int) -> int:
    """Returns 64 bits as a signed number."""
    return number - (1 << 64) if number >> 63 else number
