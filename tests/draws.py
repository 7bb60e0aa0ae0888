"""What tests take of a matrix that is too large for them: a sample by seed that covers every kind of case.

SHARDWRIGHT_TEST_SEED draws another, and `all` takes the whole of each matrix, as `make bench` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from random import Random
from typing import TypeVar

ASKED = os.environ.get("SHARDWRIGHT_TEST_SEED", "0")
WHOLE = ASKED == "all"
SEED = 0 if WHOLE else int(ASKED)
T = TypeVar("T")


def covering(cases: Iterable[T], kinds: Callable[[T], Iterable[Hashable]], least: int = 0) -> list[T]:
    """As few drawn cases as a greedy choice takes to have every kind at least once; never fewer than `least`."""
    left = list(cases)
    if WHOLE:
        return left
    Random(SEED).shuffle(left)
    missing = {kind for case in left for kind in kinds(case)}
    found: list[T] = []
    while left and (missing or len(found) < least):
        best = max(left, key=lambda case: len(missing & set(kinds(case))))
        left.remove(best)
        missing -= set(kinds(best))
        found.append(best)
    return found


def part(cases: Iterable[T], count: int) -> list[T]:
    """So many of the cases, in their order; so many seeds in a row as it takes have each case in one of them."""
    every = list(cases)
    if WHOLE or count >= len(every):
        return every
    order = list(range(len(every)))
    Random(len(every)).shuffle(order)
    drawn = {order[(SEED * count + i) % len(every)] for i in range(count)}
    return [every[i] for i in sorted(drawn)]


def found(
    cases: Iterable[T], kinds: Callable[[T], Iterable[Hashable]], wanted: Iterable[Hashable]
) -> set[Hashable]:
    """Which of the wanted kinds the cases have; no case is made after the last kind is found."""
    every = set(wanted)
    left, each = set(every), iter(cases)
    while left and (case := next(each, None)) is not None:
        left -= set(kinds(case))
    return every - left


def numbers(count: int) -> range:
    """Of random cases that are made by their number; no two seeds share any."""
    return range(1000 * SEED, 1000 * SEED + count)
