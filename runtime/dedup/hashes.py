"""Makes 64 bits of a picture or a volume, so that pictures that look alike differ in few of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import pi

import numpy as np

from planner.arrays import FloatArray
from planner.errors import BadInput

SIDES = {2: (8, 8), 3: (4, 4, 4)}  # 64 numbers of a picture, and of a volume
MOST_CHANNELS = 4


def grey(picture: object) -> FloatArray:
    """Returns a picture or volume in grey.

    Args: `picture` is an array or tensor, with its channels first or last where it has any.
    Raises: BadInput where it is anything else.
    """
    found = np.asarray(picture)
    numbers = found.dtype == np.bool_ or np.issubdtype(found.dtype, np.number)
    channels = [axis for axis in (0, -1) if found.ndim > 2 and found.shape[axis] <= MOST_CHANNELS]
    sides = found.ndim - bool(channels)
    if not numbers or sides not in SIDES or not found.size:
        raise BadInput(
            f"a sample is {found.dtype} of shape {found.shape}",
            where="dedup",
            allowed=f"a picture or a volume, with at most {MOST_CHANNELS} channels first or last",
        )
    values = found.astype(np.float64)
    return values.mean(channels[0]) if channels else values


@lru_cache
def _means(size: int, parts: int) -> FloatArray:
    """Returns the matrix that takes means over equal parts of a side, with shares of what lies in two."""
    edges, rows = np.linspace(0, size, parts + 1), np.arange(size)
    overlap = np.minimum(edges[1:, None], rows + 1) - np.maximum(edges[:-1, None], rows)
    return np.asarray(np.maximum(overlap, 0) * parts / size)


@lru_cache
def _waves(size: int, count: int) -> FloatArray:
    """Returns the first waves of the discrete cosine transform."""
    return np.asarray(np.cos(pi / size * (np.arange(size) + 0.5) * np.arange(count)[:, None]))


def _along(
    values: FloatArray, matrix: Callable[[int, int], FloatArray], sides: tuple[int, ...]
) -> FloatArray:
    for axis, parts in enumerate(sides):
        values = np.moveaxis(np.tensordot(matrix(values.shape[axis], parts), values, (1, axis)), 0, axis)
    return values


def phash(picture: FloatArray) -> FloatArray:
    """Returns which low waves of a picture lie above their median.

    Args: `picture` is grey. Its mean brightness is left out of the median.
    """
    sides = SIDES[picture.ndim]
    waves = _along(_along(picture, _means, tuple(4 * side for side in sides)), _waves, sides).ravel()
    return np.asarray(waves > np.median(waves[1:]))


def ahash(picture: FloatArray) -> FloatArray:
    """Returns where a picture is brighter than its mean.

    Args: `picture` is grey.
    """
    small = _along(picture, _means, SIDES[picture.ndim]).ravel()
    return np.asarray(small > small.mean())


def dhash(picture: FloatArray) -> FloatArray:
    """Returns where a picture becomes brighter along its last dimension.

    Args: `picture` is grey.
    """
    *others, last = SIDES[picture.ndim]
    return np.asarray(np.diff(_along(picture, _means, (*others, last + 1)), axis=-1).ravel() > 0)


HASHES: dict[str, Callable[[FloatArray], FloatArray]] = {"phash": phash, "ahash": ahash, "dhash": dhash}


def bits_of(picture: object, name: str) -> np.uint64:
    """Returns the 64 bits of a picture.

    Args: `picture` is what `grey` takes; `name` is one of `HASHES`.
    """
    return np.uint64(np.packbits(HASHES[name](grey(picture)).astype(np.bool_)).view(">u8")[0])
