"""The length of a step: its longest path, and the period once the pipeline is in its stride.

Both come as a `Bound`, the counts of a path or cycle, which is also a lower bound for any other durations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from planner.arrays import IntArray
from planner.schedule import Graph
from planner.simulate.longest_path import Compiled, batches, ends_of, node_ends, vector_of


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A path or cycle by its counts: `steps * T >= counts @ durations` holds for any durations, orders kept.

    The two sides are equal at the durations that were given.
    """

    counts: IntArray  # how often each entry of the duration vector is on the path or cycle
    ns: int  # counts @ durations
    steps: int = 1

    @property
    def period(self) -> Fraction:
        """Returns the exact mean of the cycle in nanoseconds."""
        return Fraction(self.ns, self.steps)

    @property
    def period_ns(self) -> int:
        """Returns the mean of the cycle, rounded up to whole nanoseconds."""
        return -(-self.ns // self.steps)


def critical_path(compiled: Compiled, durations: Sequence[int] | IntArray) -> Bound:
    """Finds a longest path; its counts times the durations are the makespan, exactly.

    Args: `durations` is one duration vector.
    """
    vector = vector_of(compiled, durations)
    ends = ends_of(compiled, vector)
    last = int(ends.argmax())
    nodes, _ = trace(compiled.graph, ends, last)
    return Bound(counts=path_counts(compiled, nodes), ns=int(ends[last]))


def critical_counts(compiled: Compiled, durations: IntArray) -> Iterator[IntArray]:
    """Yields the counts of a longest path for each row of a matrix of duration vectors.

    Args: `durations` is [candidate, entry].
    """
    for rows, sweep, costs in batches(compiled, durations):
        ends = sweep.run(costs, None).copy()
        for column in range(rows.stop - rows.start):
            own = np.ascontiguousarray(ends[:, column])
            nodes, _ = trace(compiled.graph, own, int(own.argmax()))
            yield path_counts(compiled, nodes)


def trace(graph: Graph, ends: IntArray, node: int) -> tuple[list[int], int]:
    """Traces the critical path of a node backwards.

    Args: `ends` are the ends of all nodes.
    Returns: the path, last node first, and the queue from whose source it starts (or -1).
    """
    path = []
    while node > graph.sources:
        path.append(node)
        a, b = int(graph.first[node]), int(graph.second[node])
        node = b if b and ends[b] > ends[a] else a
    return path, node - 1


def path_counts(compiled: Compiled, nodes: list[int]) -> IntArray:
    """Counts how often each entry of the duration vector stands on a path.

    Args: `nodes` is the path, in any order.
    """
    return np.bincount(compiled.graph.cost[nodes], minlength=compiled.size + 1)[:-1].astype(np.int64)


def period(compiled: Compiled, durations: Sequence[int] | IntArray) -> Bound:
    """Finds how long a step takes once steps follow each other.

    With a barrier that is the makespan. In rolling mode the next step of every queue starts where this step ends. The
    period is then the largest mean of a cycle of paths from queue to queue, and `steps * T >= counts @ durations` is
    that cycle's row.

    Args: `durations` is one duration vector.
    Returns: the path or cycle, whose `period_ns` is the period.
    """
    vector = vector_of(compiled, durations)
    if compiled.update == "barrier":
        return critical_path(compiled, vector)
    return _largest_cycle(compiled, vector)


_FIRST_STRIDES = 3


def _largest_cycle(compiled: Compiled, vector: IntArray) -> Bound:
    """Raises the best cycle's mean until shifting every queue by it leaves no queue later: that proves it largest.

    One step maps release times x of the queues to A(x). If A(x) <= x + m for some x, no cycle has a mean above m. If m
    is below the largest mean, the links that keep raising x contain a cycle whose mean is above m. Everything is
    multiplied by the cycle's number of steps, so that means stay integers.
    """
    best, settled = _first_cycle(compiled, vector)
    while not settled:
        better = _improve(compiled, vector, best)
        if better is None:
            return best
        best = better
    return best


def _first_cycle(compiled: Compiled, vector: IntArray) -> tuple[Bound, bool]:
    """Finds a cycle that is mostly the largest already, and whether that is proved.

    It is proved where no queue advanced by more than the cycle's mean.
    """
    x: IntArray = np.zeros(compiled.graph.sources, np.int64)
    for _ in range(_FIRST_STRIDES):
        ends = node_ends(compiled, vector, x)
        latest = ends[compiled.graph.tails]
        gain = latest - x
        most = int(gain.max())
        if most == int(gain.min()):
            break
        x = latest - latest.min()
    links = _Links(compiled, vector)
    queue = int(latest.argmax())
    while queue not in links.seen:
        queue = links.add(queue, ends)
    found = links.cycle(queue)
    return found, found.ns == most * found.steps


class _Links:
    """The links of some queues: the critical path that reached a queue's last node, from which queue, with which
    counts.
    """

    def __init__(self, compiled: Compiled, vector: IntArray) -> None:
        self.compiled, self.vector = compiled, vector
        self.seen: dict[int, tuple[int, IntArray]] = {}

    def add(self, queue: int, ends: IntArray) -> int:
        """Links a queue to the queue that its critical path starts from, and returns that queue.

        Args: `ends` are the ends of all nodes.
        """
        graph = self.compiled.graph
        nodes, start = trace(graph, ends, int(graph.tails[queue]))
        self.seen[queue] = start, path_counts(self.compiled, nodes)
        return start

    def cycle(self, queue: int) -> Bound:
        """Returns the cycle that goes through a queue.

        Args: `queue` is on a cycle of the links.
        """
        counts, steps, at = np.zeros(self.compiled.size, np.int64), 0, queue
        while steps == 0 or at != queue:
            at, path = self.seen[at]
            counts, steps = counts + path, steps + 1
        return Bound(counts=counts, ns=int(counts @ self.vector), steps=steps)

    def find(self) -> Bound | None:
        """Finds a cycle among the links, or None."""
        done: set[int] = set()
        for first in self.seen:
            walk: set[int] = set()
            queue = first
            while queue in self.seen and queue not in walk and queue not in done:
                walk.add(queue)
                queue = self.seen[queue][0]
            if queue in walk:
                return self.cycle(queue)
            done |= walk
        return None


def _improve(compiled: Compiled, vector: IntArray, best: Bound) -> Bound | None:
    """Finds a cycle of larger mean; None proves that there is none."""
    scaled = vector * best.steps
    x: IntArray = np.zeros(compiled.graph.sources, np.int64)
    links = _Links(compiled, vector)
    while True:
        x -= x.min()
        ends = node_ends(compiled, scaled, x)
        later = ends[compiled.graph.tails] - best.ns
        raised = np.flatnonzero(later > x)
        if not len(raised):
            return None
        for queue in raised.tolist():
            links.add(queue, ends)
        x = np.maximum(x, later)
        found = links.find()
        if found is not None and found.period > best.period:
            return found
