"""What tests take of a matrix that is too large for them: a sample by seed that covers every kind of case.

SHARDWRIGHT_TEST_SEED draws another; the whole of each matrix runs in `make bench`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from random import Random
from typing import TypeVar

SEED = int(os.environ.get("SHARDWRIGHT_TEST_SEED", "0"))
T = TypeVar("T")


def covering(cases: Iterable[T], kinds: Callable[[T], Iterable[Hashable]], least: int = 0) -> list[T]:
    """As few drawn cases as a greedy choice takes to have every kind at least once; never fewer than `least`."""
    left = list(cases)
    Random(SEED).shuffle(left)
    missing = {kind for case in left for kind in kinds(case)}
    found: list[T] = []
    while left and (missing or len(found) < least):
        best = max(left, key=lambda case: len(missing & set(kinds(case))))
        left.remove(best)
        missing -= set(kinds(best))
        found.append(best)
    return found


def numbers(count: int) -> range:
    """Of random cases that are made by their number; no two seeds share any."""
    return range(1000 * SEED, 1000 * SEED + count)
