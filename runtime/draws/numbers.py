"""Numbers by hash: the number of an element is a function of its sample's key and of its place in the sample.

So the numbers of any part of a tensor can be had alone, of as many samples at a time as one likes. A place is multiplied
by a large odd number of 64 bits, of whose product the upper half goes on; the sample's key is added by bits, and two
more products with the upper bits folded onto the lower ones between them make the number.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Block = tuple[slice, slice, slice, slice]
Runs = Sequence[tuple[int, int]]  # first row and end of each run of rows that a rank has
TILE: Final = 1 << 16  # elements whose numbers are made at a time: they stay in a core's cache
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = (0x7FEB352D, 0x846CA68B)  # of a hash of 32 bits
_FOLD: Final = 15  # bits
_ONE, _HALF = np.uint64(1), np.uint64(32)
_SPLITMIX: Final = tuple(
    (np.uint64(bits), np.uint64(factor))
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
)
_MANY_THREADS: Final = 4  # from which on torch is faster than numpy, which takes one


def positions(runs: Runs) -> NDArray[np.int64]:
    """Returns the numbers of all rows of some runs."""
    found = [np.arange(low, high) for low, high in runs]
    return found[0] if len(found) == 1 else np.concatenate(found)


def sample_keys(numbers: NDArray[np.int64], stream: int) -> NDArray[np.uint32]:
    """Returns a key of 32 bits for each sample.

    Args: `numbers` are the samples'; `stream` has 64 bits.
    """
    found = (numbers.astype(np.uint64) + _ONE) * np.uint64(_GOLDEN) + np.uint64(stream)
    for bits, factor in _SPLITMIX:
        found ^= found >> bits
        found *= factor
    return (found >> _HALF).astype(np.uint32)


@dataclass(frozen=True)
class Places:
    """The places of elements in a sample: sums of one number for each dimension, in the order of memory."""

    before: Sequence[NDArray[np.int64]]  # the dimensions before that of the samples
    rows: NDArray[np.int64] | None  # this dimension, where a sample has several rows of it
    behind: Sequence[NDArray[np.int64]]
    plain: bool  # those behind are counted one by one


def fill(out: Tensor, p: float, places: Places, keys: NDArray[np.uint32], stream: int) -> None:
    """Writes 0 into a share `p` of all elements, and 1 / (1 - p) into the others.

    Args: `out` is contiguous; `keys` has one for each row of the samples' dimension; `stream` has 64 bits.
    """
    between, last = split_behind(places)
    shape = tuple(prod(map(len, found)) for found in (places.before, [keys], between, last))
    sizes = _block(shape)
    small = out.numel() < _MANY_THREADS * TILE or torch.get_num_threads() < _MANY_THREADS
    plain = out.device.type == "cpu" and out.dtype in _OF_NUMPY and small
    make: _Maker = _Arrays(out, shape, p, keys) if plain else _Tensors(out, shape, p, keys)
    make.room(prod(sizes))
    rows: Any = None if places.rows is None else make.products([places.rows])[:, None, None]
    inner: Any = None if places.plain else make.products(last, stream)
    others = [*places.before, *between]
    outer: Any = make.products(places.before)[:, None, None, None] if others else None
    middle: Any = make.products(between)[:, None] if others else None
    for deep, high, wide in itertools.product(*(_slices(shape[i], sizes[i]) for i in (0, 2, 3))):
        own: Any = make.counted(wide, stream) if inner is None else inner[wide]
        own = own + middle[high] + outer[deep] if others else own[None, None, None]
        base: Any = make.upper(own) if rows is None else None
        for many in _slices(shape[1], sizes[1]):
            make.write((deep, many, high, wide), make.upper(own + rows[many]) if base is None else base)


def split_behind(places: Places) -> tuple[Sequence[NDArray[np.int64]], Sequence[NDArray[np.int64]]]:
    """Returns the dimensions behind that of the samples in two parts: the last one, and those between."""
    split = 0 if places.plain else max(0, len(places.behind) - 1)
    return places.behind[:split], places.behind[split:]


def _block(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Returns how much of each dimension is made at a time: the innermost ones first."""
    most = TILE * max(1, torch.get_num_threads())
    width = min(shape[3], TILE)
    high = min(shape[2], max(1, most // width))
    many = min(shape[1], max(1, most // (width * high)))
    return min(shape[0], max(1, most // (width * high * many))), many, high, width


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


class _Maker(Protocol):
    """Makes numbers in blocks, with arrays of its own kind: products have 64 bits, of which the upper half goes on."""

    def room(self, elements: int) -> None: ...
    def products(self, addends: Sequence[NDArray[np.int64]], more: int = 0) -> Any: ...
    def counted(self, places: slice, more: int) -> Any: ...
    def upper(self, products: Any) -> Any: ...
    def write(self, block: Block, base: Any) -> None: ...


class _Arrays:
    """Numbers made by numpy, by one thread: its calls take less time than torch's, and its shifts carry no sign."""

    def __init__(self, out: Tensor, shape: Sequence[int], p: float, keys: NDArray[np.uint32]) -> None:
        self.out, self.keys = out.view(*shape).numpy(), keys
        self.least, self.weight = np.int32(least(p)), self.out.dtype.type(1 / (1 - p))

    def room(self, elements: int) -> None:
        self.x, self.spare = np.empty((2, elements), np.uint32)

    def products(self, addends: Sequence[NDArray[np.int64]], more: int = 0) -> NDArray[np.uint64]:
        found = np.zeros(1, np.int64)
        for each in addends:
            found = np.add.outer(found, each).ravel()
        return found.view(np.uint64) * np.uint64(_GOLDEN) + np.uint64(more)

    def counted(self, places: slice, more: int) -> NDArray[np.uint64]:
        begin = places.start * _GOLDEN + more
        return _counted_array()[: places.stop - places.start] + np.uint64(begin & (1 << 64) - 1)

    def upper(self, products: NDArray[np.uint64]) -> NDArray[np.uint32]:
        return (products >> _HALF).astype(np.uint32)

    def write(self, block: Block, base: NDArray[np.uint32]) -> None:
        out = self.out[block]
        x, spare = self.x[: out.size].reshape(out.shape), self.spare[: out.size].reshape(out.shape)
        np.bitwise_xor(base, self.keys[block[1], None, None], out=x)
        np.multiply(x, _FIRST, out=x)
        np.right_shift(x, _SHIFT, out=spare)
        np.bitwise_xor(x, spare, out=x)
        np.multiply(x, _SECOND, out=x)
        np.multiply(x.view(np.int32) >= self.least, self.weight, out=out)


class _Tensors:
    """The same numbers made by torch, by many threads or on another device."""

    def __init__(self, out: Tensor, shape: Sequence[int], p: float, keys: NDArray[np.uint32]) -> None:
        self.out, self.device = out.view(*shape), out.device
        self.keys = torch.from_numpy(keys.view(np.int32)).to(out.device)
        self.least, self.weight = least(p), 1 / (1 - p)

    def room(self, elements: int) -> None:
        self.x, self.spare = torch.empty((2, elements), dtype=torch.int32, device=self.device)

    def products(self, addends: Sequence[NDArray[np.int64]], more: int = 0) -> Tensor:
        found = torch.zeros(1, dtype=torch.int64, device=self.device)
        for each in addends:
            found = (found.unsqueeze(1) + torch.from_numpy(each).to(self.device)).flatten()
        return found.mul_(_signed(_GOLDEN, 64)).add_(_signed(more, 64))

    def counted(self, places: slice, more: int) -> Tensor:
        counted = _counted(self.device)[: places.stop - places.start]
        return counted + _signed(places.start * _GOLDEN + more, 64)

    def upper(self, products: Tensor) -> Tensor:
        return (products >> 32).to(torch.int32)

    def write(self, block: Block, base: Tensor) -> None:
        out = self.out[block]
        x, spare = (each[: out.numel()].view(out.shape) for each in (self.x, self.spare))
        torch.bitwise_xor(base, self.keys[block[1], None, None], out=x)
        x.mul_(_signed(_FACTORS[0], 32))
        torch.bitwise_right_shift(x, _FOLD, out=spare).bitwise_and_(
            (1 << 32 - _FOLD) - 1
        )  # it carries the sign
        x.bitwise_xor_(spare).mul_(_signed(_FACTORS[1], 32))
        torch.ge(x, self.least, out=out)
        out.mul_(self.weight)


_FIRST, _SECOND, _SHIFT = (np.uint32(x) for x in (*_FACTORS, _FOLD))
_OF_NUMPY: Final = (torch.float16, torch.float32, torch.float64)


def least(p: float) -> int:
    """Returns the least number, as a signed one of 32 bits, of what is kept."""
    return min(round(p * (1 << 32)), (1 << 32) - 1) - (1 << 31)


@cache
def _counted(device: torch.device) -> Tensor:
    return torch.arange(TILE, device=device) * _signed(_GOLDEN, 64)


@cache
def _counted_array() -> NDArray[np.uint64]:
    return np.arange(TILE, dtype=np.uint64) * np.uint64(_GOLDEN)


def _signed(number: int, bits: int) -> int:
    """Returns the lowest bits of a number as a signed one."""
    half = 1 << bits - 1
    return ((number + half) & (2 * half - 1)) - half
