"""The longest path through a schedule whose orders are frozen, over integer arrays.

Call `compile` once, then ask as often as needed: `node_ends`, `makespan`, and `makespans` of many duration vectors at
a time. The paths themselves are in `period.py`. Times are integer nanoseconds and exact. A duration vector has one
entry a (kind, stage) and one a hop; `planner/schedule/event_graph.py` says how it is laid out.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.plan import Hop, StageTimes
from planner.schedule import KIND_ROW, Graph, Kind, Message, Queueing, Route, Schedule, build_graph
from planner.simulate.lifetimes import Spans, lifetimes
from planner.timeline import COLLECTIVE, SEND, Event, encode

Update = Literal["rolling", "barrier"]
_WIDE = 40  # nodes a level from which numpy beats a plain loop
_SWEEPS = 8  # kept laid out
_BATCH_CELLS = 1 << 18  # nodes x candidates evaluated at once, so that they stay in the cache


@dataclass(frozen=True, eq=False)
class Compiled:
    """A schedule with its messages as arrays; `update` says what a step's end means (see `period`)."""

    graph: Graph
    routes: tuple[Route, ...]
    update: Update

    @property
    def schedule(self) -> Schedule:
        return self.graph.schedule

    @property
    def size(self) -> int:
        """Returns the number of entries of a duration vector."""
        return len(Kind) * self.schedule.stages + len(self.routes)

    def index(self, kind: Kind, stage: int) -> int:
        """Returns the entry of a duration vector for a kind of action (SYNC: a gradient sum) on a stage."""
        return KIND_ROW[kind] * self.schedule.stages + stage

    def hop_index(self, hop: int) -> int:
        return len(Kind) * self.schedule.stages + hop

    @cached_property
    def rows(self) -> TimelineRows:
        return _event_rows(self.graph)

    @cached_property
    def memory_spans(self) -> tuple[Spans, ...]:
        return lifetimes(self.schedule)

    @cached_property
    def _sweep(self) -> LevelSweep:
        return LevelSweep(self, ())

    @cached_property
    def levels(self) -> list[tuple[int, int, IntArray]]:
        """Returns the nodes of each level, from one to before another, and the nodes that they wait for."""
        first, second = self.graph.first, self.graph.second
        pairs = itertools.pairwise(self.graph.levels.tolist()[1:])
        return [(a, b, np.concatenate([first[a:b], second[a:b]])) for a, b in pairs]

    @cached_property
    def _loop(self) -> list[tuple[int, int, int]]:
        g, skip = self.graph, self.graph.sources + 1
        return list(
            zip(g.first[skip:].tolist(), g.second[skip:].tolist(), g.cost[skip:].tolist(), strict=True)
        )

    @cached_property
    def _wide(self) -> bool:
        return len(self.graph.cost) > _WIDE * len(self.graph.levels)


@dataclass(frozen=True, kw_only=True, eq=False)
class TimelineRows:
    """The rows that a Timeline of the graph has: `computed` actions, worker by worker, then messages and sums."""

    nodes: IntArray
    before: IntArray  # of an action, the node that its worker did last; -1 for others
    ranks: IntArray
    codes: IntArray
    computed: int


def _event_rows(graph: Graph) -> TimelineRows:
    source = {queue[1]: 1 + i for i, queue in enumerate(graph.queues) if queue[0] == "worker"}
    nodes, before, ranks, events = [], [], [], []
    for rank, (order, own) in enumerate(zip(graph.schedule.orders, graph.actions, strict=True)):
        nodes += own.tolist()
        before += [source[rank], *own.tolist()[:-1]] if len(own) else []
        ranks += [rank] * len(own)
        events += [encode(action) for action in order]
    computed = len(nodes)
    for message, node in zip(graph.messages, graph.message_nodes.tolist(), strict=True):
        nodes.append(node)
        ranks.append(graph.schedule.place[message.pipe][message.sender])
        events.append(encode(Event(SEND, message.sender, message.micro, message.pipe)))
    for stage, node in graph.sync_nodes.items():
        for rank in sorted({pipe[stage] for pipe in graph.schedule.place}):
            nodes.append(node)
            ranks.append(rank)
            events.append(encode(Event(COLLECTIVE, stage)))
    before += [-1] * (len(nodes) - computed)
    columns = [np.array(column, np.int64) for column in (nodes, before, ranks, events)]
    return TimelineRows(
        nodes=columns[0], before=columns[1], ranks=columns[2], codes=columns[3], computed=computed
    )


class LevelSweep:
    """A level-by-level evaluation into buffers of its own; `shape` is () or (candidates,)."""

    def __init__(self, compiled: Compiled, shape: tuple[int, ...]) -> None:
        graph = self.graph = compiled.graph
        self.ends: IntArray = np.zeros((len(graph.cost), *shape), np.int64)
        self.costs: IntArray = np.zeros_like(self.ends)
        widest = max((high - low for low, high, _ in compiled.levels), default=0)
        legs: IntArray = np.empty((2 * widest, *shape), np.int64)
        self.steps = []
        for low, high, both in compiled.levels:
            n = high - low
            rows = self.ends[low:high], self.costs[low:high]
            self.steps.append((both, legs[: 2 * n], legs[:n], legs[n : 2 * n], *rows))

    def run(self, durations: IntArray, releases: IntArray | None) -> IntArray:
        """Evaluates the graph.

        Args: `durations` is [entry, *shape], with a 0 at the end; `releases` is when queues become free, 0 by default.
        Returns: [node, *shape] ends in nanoseconds, in a buffer that the next call overwrites.
        """
        durations.take(self.graph.cost, axis=0, out=self.costs, mode="clip")
        self.ends[1 : self.graph.sources + 1] = 0 if releases is None else releases
        take, maximum, add = self.ends.take, np.maximum, np.add
        for both, legs, left, right, ends, costs in self.steps:
            take(both, axis=0, out=legs, mode="clip")
            maximum(left, right, out=ends)
            add(ends, costs, out=ends)
        return self.ends


def duration_vector(times: Sequence[StageTimes], hops: Sequence[Hop]) -> IntArray:
    """Returns the duration vector of a plan's tables: kind by kind and stage by stage, then the hops."""
    columns = {
        Kind.F: [t.forward_ns for t in times],
        Kind.B: [t.backward_ns for t in times],
        Kind.I: [t.input_grad_ns for t in times],
        Kind.W: [t.weight_grad_ns for t in times],
        Kind.R: [t.recompute_ns for t in times],
        Kind.SYNC: [t.sync_ns for t in times],
        Kind.STEP: [t.step_ns for t in times],
    }
    return np.array([*(ns for kind in Kind for ns in columns[kind]), *(hop.ns for hop in hops)], np.int64)


def neighbour_hops(stages: int, *, act_ns: int = 0, grad_ns: int = 0, size_bytes: int = 0) -> tuple[Hop, ...]:
    """Makes the hops of a plain chain of stages, in both directions.

    Args: `act_ns` and `grad_ns` are the times of a message, `size_bytes` is its size.
    """
    acts = [("act", s, s + 1, act_ns) for s in range(stages - 1)]
    grads = [("grad", s + 1, s, grad_ns) for s in range(stages - 1)]
    return tuple(
        Hop(direction=d, sender=a, receiver=b, values=(), bytes=size_bytes, ns=ns)  # type: ignore[arg-type]
        for d, a, b, ns in acts + grads
    )


def compile(
    schedule: Schedule,
    hops: Sequence[Route],
    *,
    queueing: Queueing = "channel",
    update: Update = "barrier",
    ranking: Sequence[Message] = (),
) -> Compiled:
    """Builds the events of a schedule whose orders stay as they are.

    Args: `queueing` says what messages queue for: "channel" (source, target, pipe, direction), the sender's network
        "card", a "stream" a worker in the order of `ranking`, or "none".
    Raises: BadInput for an unknown `update` or hops that fit no stages; Stuck where the orders deadlock.
    """
    if update not in get_args(Update):
        raise BadInput(f"update is {update!r}", allowed=", ".join(get_args(Update)))
    graph = build_graph(schedule, hops, queueing=queueing, barrier=update == "barrier", ranking=ranking)
    return Compiled(graph, tuple(hops), update)


def vector_of(compiled: Compiled, durations: Sequence[int] | IntArray, axes: int = 1) -> IntArray:
    """Checks durations and returns them as 64-bit integers.

    Args: `axes` is 1 for one duration vector, 2 for a matrix of them.
    Raises: BadInput for another shape, for numbers that are not whole or below 0, or so long that a sum could leave 64
        bits.
    """
    vector = np.asarray(durations)
    if vector.ndim != axes or vector.shape[-1] != compiled.size:
        shape = " x ".join(map(str, vector.shape))
        raise BadInput(f"{shape} durations", allowed=f"{compiled.size}: kinds x stages, then hops")
    if vector.dtype.kind not in "iu":
        raise BadInput(f"durations of type {vector.dtype}", allowed="whole nanoseconds within 64 bits")
    vector = vector.astype(np.int64, copy=False)
    # a negative number is a huge one without its sign
    if int(vector.view(np.uint64).max(initial=0)) > _longest(compiled):
        raise _no_duration(compiled, vector)
    return vector


def _longest(compiled: Compiled) -> int:
    return ((1 << 62) - 1) // len(compiled.graph.cost)


def _no_duration(compiled: Compiled, vector: IntArray) -> BadInput:
    longest = _longest(compiled)
    rows = enumerate(vector.reshape(-1, compiled.size).T.tolist())
    index, value = next((i, v) for i, row in rows for v in row if not 0 <= v <= longest)
    kind, stage = divmod(index, compiled.schedule.stages)
    hop = index - compiled.hop_index(0)
    what = f"{list(Kind)[kind].value} of stage {stage}" if hop < 0 else f"hop {hop}"
    return BadInput(f"{what} takes {value}", allowed=f"whole nanoseconds from 0 to {longest}")


def ends_of(compiled: Compiled, vector: IntArray, releases: IntArray | None = None) -> IntArray:
    """Returns the end of every node. The array belongs to the caller only until the next call.

    Args: `vector` comes from `vector_of`; `releases` is when queues become free, 0 by default.
    """
    if compiled._wide:
        return compiled._sweep.run(np.append(vector, 0), releases)
    return np.array(_loop_ends(compiled, vector.tolist(), releases), np.int64)


def _loop_ends(compiled: Compiled, costs: list[int], releases: IntArray | None) -> list[int]:
    costs.append(0)
    ends = [0] * (compiled.graph.sources + 1) if releases is None else [0, *releases.tolist()]
    append = ends.append
    for first, second, cost in compiled._loop:
        a, b = ends[first], ends[second]
        append((a if a > b else b) + costs[cost])
    return ends


def makespan(compiled: Compiled, durations: Sequence[int] | IntArray) -> int:
    """Returns the nanoseconds of one step from idle devices to the last end, for one duration vector."""
    vector = vector_of(compiled, durations)
    if compiled._wide:
        return int(ends_of(compiled, vector).max())
    return max(_loop_ends(compiled, vector.tolist(), None))


def makespans(compiled: Compiled, durations: IntArray) -> IntArray:
    """Returns the [candidate] makespans of many duration vectors, [candidate, entry]."""
    out: IntArray = np.empty(len(durations), np.int64)
    for rows, sweep, costs in batches(compiled, durations):
        out[rows] = sweep.run(costs, None).max(axis=0)[: rows.stop - rows.start]
    return out


@lru_cache(maxsize=_SWEEPS)
def _sweep(compiled: Compiled, width: int, thread: int) -> LevelSweep:
    """Returns a sweep of so many candidates: laying one out takes longer than a run of few candidates."""
    return LevelSweep(compiled, (width,))


def batches(compiled: Compiled, durations: IntArray) -> Iterator[tuple[slice, LevelSweep, IntArray]]:
    """Cuts a matrix of duration vectors into batches that fit the cache.

    Yields: the rows of the batch, the sweep that evaluates it until the next batch of this graph, and its durations as
    [entry, candidate], where candidates of no time may follow those of the rows.
    """
    table = vector_of(compiled, durations, 2)
    size = max(1, _BATCH_CELLS // len(compiled.graph.cost))
    for low in range(0, len(table), size):
        part = table[low : low + size]
        width = min(size, 1 << (len(part) - 1).bit_length())
        costs: IntArray = np.zeros((compiled.size + 1, width), np.int64)
        costs[:-1, : len(part)] = part.T
        yield slice(low, low + len(part)), _sweep(compiled, width, threading.get_ident()), costs


def node_ends(
    compiled: Compiled, durations: Sequence[int] | IntArray, releases: IntArray | None = None
) -> IntArray:
    """Returns the end of every node in nanoseconds; `releases` says when queues become free (0 by default)."""
    return ends_of(compiled, vector_of(compiled, durations), releases).copy()
