"""Counts the entries that a share keeps of a tensor, and of every pruned weight of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planner.model import ModelGraph

MOVED_ENTRIES = 2**18  # of a gradient or of a weight, at a time


def share_of(elements: int, keep: float) -> int:
    """Returns how many entries of a tensor a share keeps, at least one.

    >>> share_of(1000, 0.1), share_of(3, 0.1)
    (100, 1)
    """
    return min(elements, max(1, round(keep * elements)))


def has_rows(shape: Sequence[int]) -> bool:
    """Returns whether a tensor is pruned where nobody names it: it has two dims of more than one entry.

    Biases and norms stay whole, and so does what has one entry a channel or a feature in another shape: the g of
    weight_norm, scales of layers, the token of a class.

    >>> has_rows((20, 10)), has_rows((20,)), has_rows((20, 1)), has_rows((1, 1, 10))
    (True, False, False, False)
    """
    return sum(size > 1 for size in shape) > 1


def kept_counts(graph: ModelGraph, keep: float) -> dict[str, int]:
    """Returns how many entries every pruned parameter keeps where each keeps one share of its own.

    Parameters stay whole of fewer than two dims of more than one entry, and those that the model itself writes.
    Args: `keep` is the share, above 0 and at most 1.
    Returns: counts of those parameters that keep less than everything.
    """
    sizes = {row.name: prod(row.shape) for row in graph.trained if has_rows(row.shape) and not row.written}
    counts = {name: share_of(size, keep) for name, size in sizes.items() if size}
    return {name: count for name, count in sorted(counts.items()) if count < sizes[name]}


@dataclass(frozen=True, slots=True)
class KeptEntries:
    """The number of entries that a training keeps of each pruned parameter, and what says so."""

    counts: Mapping[str, int]  # by parameter; whole ones are not among them
    share: float = 1.0  # of the entries of pruned parameters
    digest: str = ""  # of the masks; empty where there are none yet
    even: bool = True  # each weight that `has_rows` keeps the share of its own

    @classmethod
    def of_share(cls, graph: ModelGraph, share: float) -> KeptEntries:
        """Returns the entries that every weight that `has_rows` keeps of its own, before there are masks.

        Args: `share` is above 0 and at most 1.
        """
        counts = kept_counts(graph, share)
        return cls(counts, share) if counts else WHOLE

    @classmethod
    def of_masks(cls, graph: ModelGraph, counts: Mapping[str, int], digest: str) -> KeptEntries:
        """Returns the entries that masks keep.

        Args: `counts` are by parameter of the model, fewer than each has.
        """
        if not counts:
            return WHOLE
        whole = sum(prod(graph.parameter[name].shape) for name in counts)
        share = min(max(round(sum(counts.values()) / whole, 4), 1e-4), 0.9999)
        return cls(dict(counts), share, digest, dict(counts) == kept_counts(graph, share))


WHOLE = KeptEntries({})
