"""Chooses what is kept of a model by the magnitude of its weights; pure arithmetic on numbers that are there already.

The entries of the largest magnitude stay. Of equal ones the first stays, so the same weights always give the same masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.kept.counts import has_rows, share_of
from planner.kept.masks import MOST_ELEMENTS, Indices, Masks

Real = NDArray[np.floating[Any]]
By = Literal["layer", "global"]


class Numbers(NamedTuple):
    """The numbers of a model: shapes by name, and what reads one tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Real]


def prune(tensors: Numbers, keep: float, *, by: By = "layer", only: Sequence[str] = ()) -> Masks:
    """Returns the masks that keep the entries of the largest magnitude.

    Args: `keep` is the share of entries that stay. By `layer` every tensor keeps this share, by `global` all of them
        together. `only` has patterns of names; without any, tensors with at least two dims of
        more than one entry are pruned.
    Raises: BadInput where the share means nothing, a name matches no tensor, or a tensor would keep nothing.
    """
    if not 0 < keep <= 1:
        raise BadInput(f"keep is {keep:g}", where="--keep", allowed="a share above 0 and at most 1")
    names = _chosen(tensors.shapes, only)
    sizes = {name: prod(tensors.shapes[name]) for name in names}
    for name, size in sizes.items():
        if size > MOST_ELEMENTS:
            raise BadInput(f"'{name}' has {size} elements", allowed=f"at most {MOST_ELEMENTS}")
    if by == "layer":
        found = {name: _largest(_finite(tensors, name), share_of(sizes[name], keep)) for name in names}
    else:
        found = _over_all(tensors, names, share_of(sum(sizes.values()), keep))
    return Masks(found, sizes, {name: tuple(tensors.shapes[name]) for name in names})


def _chosen(shapes: Mapping[str, tuple[int, ...]], only: Sequence[str]) -> list[str]:
    """Returns the names of the tensors that are pruned."""
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in shapes):
            known = ", ".join(sorted(shapes)[:5])
            raise BadInput(f"'{pattern}' matches no weight", where="--only", allowed=f"such as {known}")
    if only:
        named = [name for name in shapes if any(fnmatchcase(name, pattern) for pattern in only)]
    else:
        named = [name for name, shape in shapes.items() if has_rows(shape)]
    found = sorted(name for name in named if prod(shapes[name]))
    if not found:
        raise BadInput(
            "there is nothing to prune",
            allowed="weights with two dims of more than one entry, or --only NAME",
        )
    return found


def _finite(tensors: Numbers, name: str) -> Real:
    """Returns the magnitudes of a tensor, laid flat."""
    found: Real = np.abs(tensors.read(name).reshape(-1))
    if not np.isfinite(found).all():
        raise BadInput(f"'{name}' has numbers that are not finite", allowed="finite weights")
    return found


def _largest(magnitudes: Real, count: int) -> Indices:
    """Returns the sorted indices of the largest entries; of equal ones the first."""
    if count >= len(magnitudes):
        return np.arange(len(magnitudes), dtype=np.int32)
    limit = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    above = np.flatnonzero(magnitudes > limit)
    equal = np.flatnonzero(magnitudes == limit)[: count - len(above)]
    return np.sort(np.concatenate([above, equal])).astype(np.int32)


def _over_all(tensors: Numbers, names: Sequence[str], count: int) -> dict[str, Indices]:
    every = [_finite(tensors, name) for name in names]
    kept = _largest(np.concatenate(every), count).astype(np.int64)
    ends = np.cumsum([len(own) for own in every])
    found = {}
    for name, own, end in zip(names, every, ends, strict=True):
        start = int(end) - len(own)
        inside = kept[(kept >= start) & (kept < end)] - start
        if not len(inside):
            raise BadInput(
                f"'{name}' would keep no entry by global magnitude",
                where="--by",
                allowed="by layer, a larger --keep, or --only with other weights",
            )
        found[name] = inside.astype(np.int32)
    return found
