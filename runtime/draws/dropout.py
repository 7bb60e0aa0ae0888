"""Dropout whose numbers come by hash: on a host as a tensor of factors, on a GPU in a kernel that keeps none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from planner.spatial import NONE
from runtime.draws.numbers import Places, Runs, fill, least, positions, sample_keys, split_behind

Parts = Mapping[int, tuple[int, Runs]]  # the whole length and a rank's own rows, by dimension
Here = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


class DropoutNumbers(NamedTuple):
    """All that the numbers of a dropout depend on, beside the shape of the tensor."""

    dim: int  # of the samples, NONE where there are none, OTHERWISE where that is not known
    rows: int  # of each sample along it
    parts: Parts  # of dimensions that are cut
    streams: tuple[int, int]  # 64 bits for the samples, and 64 for their elements
    micro: int  # number of the micro-batch over all replicas


def dropped(x: Tensor, p: float, numbers: DropoutNumbers, behind: int | None = None) -> Tensor:
    """Returns a dropout of a tensor, or of a rank's part of one.

    Args: `p` is below 1; all that lies behind so many dimensions has one number, where `behind` is given.
    """
    if behind is None and x.device.type == "cuda" and has_triton():
        return _in_a_kernel(x, p, numbers)
    first = x if behind is None else x[(*[slice(None)] * behind, *[slice(1)] * (x.ndim - behind))]
    with torch.no_grad():
        factors = _factors(first, p, numbers)
    return x * factors


@cache
def has_triton() -> bool:
    """Returns whether kernels can be made here; elsewhere a GPU makes the numbers by torch, in more time and memory."""
    return find_spec("triton") is not None


def _factors(x: Tensor, p: float, numbers: DropoutNumbers) -> Tensor:
    """Returns 0 for what is dropped and 1 / (1 - p) for what is kept, in the order of memory of `x`."""
    order, here = _order(x), _here(x, numbers.parts)
    places, samples, batch = _places(here, order, numbers.dim, numbers.rows)
    keys, stream = numbers.streams
    found = x.new_empty([x.shape[dim] for dim in order])
    fill(found, p, places, sample_keys(samples + _first(numbers, batch), keys), stream)
    return found.permute([order.index(dim) for dim in range(x.ndim)])


def _in_a_kernel(x: Tensor, p: float, numbers: DropoutNumbers) -> Tensor:
    from runtime.draws.on_gpu import Dropped, Kernel

    order = _order(x)
    shape, tables, batch = _tables(_here(x, numbers.parts), order, numbers.dim, numbers.rows, x.device)
    kernel = Kernel(order, shape, tables, numbers.streams, _first(numbers, batch), least(p), 1 / (1 - p))
    found: Tensor = Dropped.apply(x, kernel)  # type: ignore[no-untyped-call]
    return found


def _first(numbers: DropoutNumbers, samples: int) -> int:
    """Returns the place in the batch of the step of the first sample of a micro-batch of so many."""
    return samples * numbers.micro if numbers.dim != NONE else 0


def _order(x: Tensor) -> tuple[int, ...]:
    """Returns the dimensions of a tensor in the order in which they lie in memory."""
    return tuple(sorted(range(x.ndim), key=x.stride().__getitem__, reverse=True))


def _here(x: Tensor, parts: Parts) -> Here:
    given = [parts.get(dim, (n, ((0, n),))) for dim, n in enumerate(x.shape)]
    return tuple((n, tuple(runs)) for n, runs in given)


@lru_cache(256)
def _tables(
    here: Here, order: tuple[int, ...], dim: int, rows: int, device: torch.device
) -> tuple[
    tuple[int, int, int, int], tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None], int
]:
    """Returns on a GPU what `_places` says: the four lengths, tables of places, and the samples of a micro-batch."""
    places, samples, batch = _places(here, order, dim, rows)
    between, last = split_behind(places)
    lengths = tuple(prod(map(len, found)) for found in (places.before, [samples], between, last))
    own = [_sums(places.before), places.rows, _sums(between), None if places.plain else _sums(last)]
    found = [None if each is None else torch.from_numpy(each).to(device) for each in own]
    assert len(lengths) == 4
    return lengths, (torch.from_numpy(samples).to(device), *found), batch  # type: ignore[return-value]


def _sums(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Returns the sum of one number of each table for all ways to take them; None where there are no tables."""
    found = None
    for each in tables:
        found = each if found is None else np.add.outer(found, each).ravel()
    return found


@lru_cache(256)
def _places(here: Here, order: tuple[int, ...], dim: int, rows: int) -> tuple[Places, NDArray[np.int64], int]:
    """Returns where the elements of a part of a tensor lie in their samples, and in which samples of how many.

    Args: `here` has the whole length and the rows of each dimension; they lie in memory in this order; the samples
        have so many rows each of one dimension, if that is known.
    """
    lengths, own = [n for n, _ in here], [positions(runs) for _, runs in here]
    samples, batch, behind = positions(((0, 1),)), 1, order
    before, further = tuple[int, ...](), None
    if dim >= 0:
        samples, batch = own[dim] // rows, lengths[dim] // rows
        place, lengths[dim] = order.index(dim), rows
        before, behind = order[:place], order[place + 1 :]
        further = own[dim] % rows * prod(lengths[dim + 1 :]) if rows > 1 else None
    whole = [((0, n),) == tuple(runs) for n, runs in here]
    plain = behind == tuple(range(len(order) - len(behind), len(order))) and all(whole[x] for x in behind)
    found = [[own[x] * prod(lengths[x + 1 :]) for x in dims] for dims in (before, behind)]
    return Places(found[0], further, found[1], plain), samples, batch
