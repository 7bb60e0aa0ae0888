"""Finds the best stages of a graph that is no chain: the chain of downward-closed sets with the least largest load.

Elements have a cost and a size, and some come before others. What an element sends is paid once by its own stage and
once by every other stage that reads it, each time for one direction. A stage is the difference of two downward-closed
sets ("ideals"). Its load is the costs of its elements and of what it sends and receives. Of at most so many stages,
none of them too large, `best_stages` finds the stages whose largest load is least, over the whole lattice of ideals.

The lattice is searched from the empty set upwards. A load is a difference of what the two ideals know, except for
what crosses the smaller one, which are few elements. So one pass of array operations prices every stage that begins
at an ideal. Chains along two orders of the elements come first: their largest load bounds what is looked at
afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import or_

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.milp.layer_orders.elements import ElementWork, Sent, reduced

MOST_IDEALS = 100_000


class TooManyIdeals(Exception):
    """The lattice is too large to be searched."""


@dataclass(frozen=True, kw_only=True)
class StageSplit:
    """The stages found, and their largest load."""

    elements: tuple[tuple[int, ...], ...]  # of each stage
    load: float  # the largest


def best_stages(
    work: ElementWork, most: int, *, room: float = float("inf"), ideals: int = MOST_IDEALS
) -> StageSplit | None:
    """Finds the stages whose largest load is least.

    Args: at most `most` stages, each with elements of at most `room` in size; at most `ideals` sets are searched.
    Returns: None where no stages fit.
    Raises: TooManyIdeals where the lattice is larger.
    """
    small = reduced(work)
    if small.work.count == work.count:
        return _best_stages(work, most, room, ideals)
    relaxed = _best_stages(small.work, most, room, ideals)
    if relaxed is None:
        return None
    stages = small.expanded(relaxed.elements)
    if max(sum(work.size[k] for k in stage) for stage in stages) <= room:
        return StageSplit(elements=stages, load=relaxed.load)
    return _best_stages(work, most, room, ideals)


def _best_stages(work: ElementWork, most: int, room: float, ideals: int) -> StageSplit | None:
    every = ideals_of(work.before, ideals)
    found: StageSplit | None = None
    for order in (_wide(work.before), _deep(work.before)):
        # The ideals that the order passes through.
        passed = list(accumulate((1 << k for k in order), or_, initial=0))
        along = Lattice(work, passed).best(most, room, found.load if found else float("inf"))
        found = along or found
    better = Lattice(work, every).best(most, room, found.load if found else float("inf"))
    return better or found


def ideals_of(before: Sequence[Sequence[int]], most: int = MOST_IDEALS) -> list[int]:
    """Returns every downward-closed set, as bits of an integer.

    Args: `before` names, for each element, what must come before it.
    Raises: TooManyIdeals where there are more than `most`.
    """
    masks = [sum(1 << j for j in set(row)) for row in before]
    after: list[list[int]] = [[] for _ in before]
    for k, row in enumerate(before):
        for j in set(row):
            after[j].append(k)
    ready = {0: sum(1 << k for k, mask in enumerate(masks) if not mask)}
    frontier = [0]
    while frontier:
        following = []
        for ideal in frontier:
            for k in _bits(ready[ideal]):
                larger = ideal | 1 << k
                if larger not in ready:
                    opened = sum(1 << j for j in after[k] if not masks[j] & ~larger)
                    ready[larger] = ready[ideal] & ~(1 << k) | opened
                    following.append(larger)
        if len(ready) > most:
            raise TooManyIdeals(f"more than {most} downward-closed sets")
        frontier = following
    return list(ready)


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _wide(before: Sequence[Sequence[int]]) -> list[int]:
    """Returns an order of the elements that takes whatever is ready, all branches in turn."""
    done: dict[int, None] = {}
    while len(done) < len(before):
        done |= dict.fromkeys(k for k, row in enumerate(before) if k not in done and done.keys() >= set(row))
    return list(done)


def _deep(before: Sequence[Sequence[int]]) -> list[int]:
    """Returns an order that takes one branch after the other: an element comes as soon as what it depends on."""
    done: dict[int, None] = {}
    tops = set(range(len(before))) - {j for row in before for j in row}
    stack = sorted(tops, reverse=True)
    while stack:
        waits = [j for j in before[stack[-1]] if j not in done]
        if waits:
            stack += sorted(waits, reverse=True)
        else:
            done[stack.pop()] = None
    return list(done)


class Lattice:
    """A set of ideals as columns: the whole lattice, or a part of it with the empty set and the full one."""

    def __init__(self, work: ElementWork, ideals: Sequence[int]) -> None:
        self.work = work
        width = (work.count + 7) // 8
        rows = np.frombuffer(b"".join(x.to_bytes(width, "little") for x in ideals), np.uint8)
        bits = np.unpackbits(rows.reshape(len(ideals), width), axis=1, count=work.count, bitorder="little")
        cost: FloatArray = bits @ np.array(work.cost)
        order = np.lexsort((bits.sum(1, dtype=np.int64), cost))  # a set comes after all of its subsets
        self.has: BoolArray = np.ascontiguousarray(bits[order].T.astype(np.bool_))  # [element, ideal]
        self.cost = cost[order]
        self.size: FloatArray = (bits @ np.array(work.size))[order]

    @cached_property
    def kinds(self) -> tuple[list[Sent], list[Sent], list[Sent]]:
        """Returns the messages in three lists: read after their source only, before it only (gradients), or both."""
        above = _above(self.work.before)
        found: tuple[list[Sent], list[Sent], list[Sent]] = ([], [], [])
        for sent in self.work.sent:
            others = tuple(sorted(set(sent.readers) - {sent.source}))
            late = all(sent.source in above[k] for k in others)
            early = all(k in above[sent.source] for k in others)
            if others and sent.cost:
                found[0 if late else 1 if early else 2].append(replace(sent, readers=others))
        return found

    @cached_property
    def crossing(self) -> FloatArray:
        """Returns, for each ideal, the costs of what leaves it and of gradients that come into it."""
        total: FloatArray = np.zeros(len(self.cost))
        forward, backward, _ = self.kinds
        for sent in forward:
            total += sent.cost * (self.has[sent.source] & ~self._all(sent.readers))
        for sent in backward:
            total += sent.cost * (~self.has[sent.source] & self._any(sent.readers))
        return total

    def _all(self, elements: Sequence[int], where: slice = slice(None)) -> BoolArray:
        found: BoolArray = np.logical_and.reduce(self.has[list(elements), where], axis=0)
        return found

    def _any(self, elements: Sequence[int], where: slice = slice(None)) -> BoolArray:
        found: BoolArray = np.logical_or.reduce(self.has[list(elements), where], axis=0)
        return found

    @cached_property
    def tops(self) -> BoolArray:
        """Returns [element, ideal]: whether the element is in the ideal and nothing of the ideal comes after it."""
        tops = self.has.copy()
        for k, row in enumerate(self.work.before):
            for j in row:
                tops[j] &= ~self.has[k]
        return tops

    @cached_property
    def across(self) -> tuple[BoolArray, BoolArray]:
        """Returns [message, ideal] twice: whether a message crosses the ideal, forward and backward."""
        forward, backward, _ = self.kinds
        ahead = [self.has[s.source] & ~self._all(s.readers) for s in forward]
        back = [~self.has[s.source] & self._any(s.readers) for s in backward]
        empty: BoolArray = np.zeros((0, len(self.cost)), np.bool_)
        return np.stack(ahead) if ahead else empty, np.stack(back) if back else empty

    def loads(self, begin: int, where: slice) -> FloatArray:
        """Returns the loads of the stages between one ideal and some later ones.

        Args: `begin` is the smaller ideal; `where` selects the larger ones.
        Returns: infinite loads where the larger ideal does not contain the smaller.
        """
        load: FloatArray = self.cost[where] - self.cost[begin] + self.crossing[where]
        forward, backward, both = self.kinds
        ahead, back = self.across
        for number in np.flatnonzero(ahead[:, begin]):
            sent = forward[number]
            open_ = [k for k in sent.readers if not self.has[k, begin]]
            load += sent.cost * (self._any(open_, where).astype(np.int8) - ~self._all(open_, where))
        for number in np.flatnonzero(back[:, begin]):
            sent = backward[number]
            open_ = [k for k in sent.readers if not self.has[k, begin]]
            inside = self.has[sent.source, where]
            load += sent.cost * (inside - (~inside & ~self._any(open_, where)).astype(np.int8))
        for sent in both:
            load += sent.cost * self._either(sent, begin, where)
        load[~self._all(np.flatnonzero(self.tops[:, begin]).tolist(), where)] = np.inf
        return load

    def _either(self, sent: Sent, begin: int, where: slice) -> BoolArray:
        """Returns whether a stage sends a message or receives it, wherever its readers are."""
        open_ = [k for k in sent.readers if not self.has[k, begin]]
        reads = self._any(open_, where)
        if self.has[sent.source, begin]:
            return reads
        inside = self.has[sent.source, where]
        outside = ~self._all(open_, where) if len(open_) == len(sent.readers) else True
        return np.where(inside, outside, reads)

    def best(self, most: int, room: float, below: float) -> StageSplit | None:
        """Finds the chain from the first ideal to the last with the least largest load.

        Args: at most `most` stages, each of at most `room` in size and of a load below `below`.
        Returns: None where there is no such chain.
        """
        count, total = len(self.cost), self.cost[-1]
        value: FloatArray = np.full((most + 1, count), np.inf)
        came: IntArray = np.full((most + 1, count), -1)
        value[0, 0] = 0.0
        for begin in range(count - 1):
            steps = [
                k
                for k in range(most)
                if value[k, begin] < below and total - self.cost[begin] < (most - k) * below
            ]
            if not steps:
                continue
            end = int(np.searchsorted(self.cost, self.cost[begin] + below, "left"))
            if end <= begin + 1:
                continue
            where = slice(begin + 1, end)
            load = self.loads(begin, where)
            load[self.size[where] - self.size[begin] > room] = np.inf
            for k in steps:
                largest = np.maximum(load, value[k, begin])
                better = (largest < value[k + 1, where]) & (largest < below)
                value[k + 1, where][better] = largest[better]
                came[k + 1, where][better] = begin
        last = int(value[:, -1].argmin())
        return self._stages(came, last, float(value[last, -1])) if np.isfinite(value[last, -1]) else None

    def _stages(self, came: IntArray, step: int, load: float) -> StageSplit:
        at, found = len(self.cost) - 1, []
        for k in range(step, 0, -1):
            begin = int(came[k, at])
            found.append(tuple(np.flatnonzero(self.has[:, at] & ~self.has[:, begin]).tolist()))
            at = begin
        return StageSplit(elements=tuple(reversed(found)), load=load)


def _above(before: Sequence[Sequence[int]]) -> list[set[int]]:
    """Returns, for each element, all that come before it."""
    found: list[set[int]] = [set() for _ in before]
    for k in _wide(before):
        found[k] = set(before[k]).union(*(found[j] for j in before[k]))
    return found
