"""Finds all samples that are nearly alike, exactly as by comparing all with all, and which of them to keep.

Numbers that differ in at most T bits agree in at least one of T + 1 bands of bits. So only numbers that agree in a
band are compared, which leaves out no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import IntArray
from planner.errors import BadInput
from runtime.data import raw_of
from runtime.dedup.hashes import bits_of
from runtime.dedup.index import content_of, parts_of

MOST_THRESHOLD = 16
Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class FoundNear:
    """Says which samples of a dataset to keep, and which near pairs have labels that differ."""

    contents: Bits  # of all samples, as are bits and labels
    bits: Bits
    labels: IntArray
    kept: IntArray
    other_labels: IntArray  # [pair, 2] near pairs of different labels, which one of them may have by mistake
    copies: int  # samples that equal an earlier one of their label
    near: int  # samples that are left out beside those


def find(data: Sequence[Any], kind: str, threshold: int, tell: Callable[[int], object] = id) -> FoundNear:
    """Reads every sample once, and keeps one of each group of near ones within a label.

    Args: `kind` is one of `HASHES`; near samples differ in at most `threshold` bits; `tell` hears how many were read.
    Raises: BadInput where a sample is no picture, or is another one when it is read again.
    """
    read, labels = np.zeros((2, len(data)), np.uint64), []
    for i in range(len(data)):
        picture, label = parts_of(raw_of(data, i))
        read[:, i] = content_of(picture), bits_of(picture, kind)
        labels.append(str(label))
        tell(i + 1)
    if not labels or content_of(parts_of(raw_of(data, 0))[0]) != read[0, 0]:
        what = "sample 0 is another one when it is read again" if labels else "there are no samples"
        raise BadInput(what, where="dedup", allowed="a dataset that draws nothing, or one with raw(index)")
    return kept_of(read[0], read[1], np.unique(labels, return_inverse=True)[1], threshold)


def kept_of(contents: Bits, bits: Bits, labels: IntArray, threshold: int) -> FoundNear:
    """Returns what to keep of samples, of which content, bits and label are known.

    Raises: BadInput for a threshold that is no number of bits.
    """
    unlike = _firsts(contents, labels)
    firsts = unlike[_firsts(bits[unlike], labels[unlike])]
    pairs = firsts[near_pairs(bits[firsts], threshold)]
    alike = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    kept = firsts[groups(len(bits), pairs[alike])[firsts] == firsts]
    copies, near = len(bits) - len(unlike), len(unlike) - len(kept)
    return FoundNear(contents, bits, labels, kept, pairs[~alike], copies, near)


def _firsts(numbers: Bits, labels: IntArray) -> IntArray:
    """Returns the first place of each pair of number and label."""
    own = np.stack([numbers, labels.astype(np.uint64)], axis=1)
    return np.sort(np.unique(own, axis=0, return_index=True)[1])


def near_pairs(bits: Bits, threshold: int) -> IntArray:
    """Returns the pairs of numbers that differ in at most `threshold` bits.

    Returns: indices [pair, 2], the lower one first, sorted.
    """
    if not 0 <= threshold <= MOST_THRESHOLD:
        raise BadInput(f"{threshold} bits", where="--threshold", allowed=f"0 to {MOST_THRESHOLD}")
    edges = np.linspace(0, 64, threshold + 2).astype(int).tolist()
    masks = [np.uint64(sum(1 << bit for bit in range(*span))) for span in pairwise(edges)]
    found = [row for number in range(len(masks)) for row in _agreeing(bits, masks, number, threshold)]
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *found])
    return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])


def _agreeing(bits: Bits, masks: list[np.uint64], number: int, threshold: int) -> Iterator[IntArray]:
    """Yields near pairs that agree in a band and in none before it."""
    order = np.argsort(bits & masks[number], kind="stable")
    ordered = bits[order]
    keys, left = ordered & masks[number], np.arange(len(bits))
    for apart in range(1, len(bits)):
        left = left[: np.searchsorted(left, len(bits) - apart)]
        left = left[keys[left] == keys[left + apart]]
        if not len(left):
            return
        differ = ordered[left] ^ ordered[left + apart]
        near = np.flatnonzero(_ones(differ) <= threshold)
        for mask in masks[:number]:
            near = near[(differ[near] & mask) != 0]
        yield np.stack([order[left[near]], order[left[near] + apart]], axis=1)


def _ones(bits: Bits) -> IntArray:
    """Returns the number of ones in each number; numpy before 2.0 has no function for that."""
    if hasattr(np, "bitwise_count"):
        return np.asarray(np.bitwise_count(bits))
    return np.asarray(np.unpackbits(bits.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1))


def groups(count: int, pairs: IntArray) -> IntArray:
    """Returns the lowest index that each number is connected with.

    Args: there are `count` numbers, and `pairs` are of their indices.
    """
    lowest, before = np.arange(count), np.zeros(0, np.int64)
    while not np.array_equal(before, lowest):
        before = lowest.copy()
        for a, b in ((0, 1), (1, 0)):
            np.minimum.at(lowest, pairs[:, a], before[pairs[:, b]])
        lowest = lowest[lowest]
    return lowest
