"""Finds the best order of weight gradients and gradient sums for given times.

All numbers of late weight gradients are tried, with sums as they are ready or by priority. By priority means: a link
that is free takes, of the sums that can start, the one whose parameters the next step needs first. That order is
worked out here, from the steady state, and repaired by moving single sums while that gains something. At run time it
is a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from planner.arrays import IntArray
from planner.plan import Hop, StageTimes
from planner.schedule import LAST, Kind, Overlap, Schedule, Updates, first_uses, overlapped
from planner.simulate.longest_path import Compiled, Update, compile, duration_vector, node_ends
from planner.simulate.period import period

_EFFORT = 30_000  # actions simulated while repairing: a third of a second or so
_STRIDES = 3  # steps after which the order of events hardly changes any more


@dataclass(frozen=True, kw_only=True, order=True)
class Candidate:
    """One order with its period. Candidates compare by time; of equals the one nearest to the plain order comes first."""

    ns: int
    late: int
    reordered: bool
    overlap: Overlap


def best_overlap(
    schedule: Schedule, times: Sequence[StageTimes], hops: Sequence[Hop], *, parts: int, update: Update
) -> Candidate:
    """Finds the best of `candidates`, and repairs its order of sums.

    Args: those of `candidates`.
    Returns: the candidate with the shortest period in nanoseconds.
    """
    every = candidates(schedule, times, hops, parts=parts, update=update)
    best = min(every, key=lambda each: (each.ns, each.late, each.reordered))
    return _repaired(schedule, best, times, hops) if best.overlap.updates == "at_use" else best


def candidates(
    schedule: Schedule, times: Sequence[StageTimes], hops: Sequence[Hop], *, parts: int, update: Update
) -> Iterator[Candidate]:
    """Yields an order for every number of late weight gradients, and with one pipe also one by priority of sums.

    With a barrier all gradients are waited for, so that neither their order nor late weight gradients gain anything.

    Args: `schedule` is not cut in parts yet; `times` and `hops` are those of the parts.
    """
    updates: Updates = "at_use" if update == "rolling" else "at_end"
    most = parts * max(len(first_uses(order)) for order in schedule.orders)
    for late in range(most + 1 if update == "rolling" else 1):
        plain = Overlap(parts=parts, late=late, updates=updates)
        compiled = compile(overlapped(schedule, plain), hops, update=update)
        vector = duration_vector(times, hops)
        yield Candidate(ns=period(compiled, vector).period_ns, late=late, reordered=False, overlap=plain)
        if updates == "at_use" and schedule.pipes == 1:
            yield _prioritised(schedule, plain, compiled, vector, hops)


def _prioritised(
    schedule: Schedule, plain: Overlap, compiled: Compiled, vector: IntArray, hops: Sequence[Hop]
) -> Candidate:
    overlap = replace(plain, sums=sums_by_need(compiled, vector))
    anew = compile(overlapped(schedule, overlap), hops, update=compiled.update)
    ns = period(anew, vector).period_ns
    return Candidate(ns=ns, late=plain.late, reordered=True, overlap=overlap)


def _repaired(
    schedule: Schedule, best: Candidate, times: Sequence[StageTimes], hops: Sequence[Hop]
) -> Candidate:
    """Shortens the period by moving one sum at a time to another place in the order."""
    if schedule.pipes > 1:
        return best
    vector = duration_vector(times, hops)
    left = _EFFORT // sum(map(len, overlapped(schedule, best.overlap).orders))
    pairs = permutations(range(len(times)), 2)
    # Neighbours come first.
    moves = sorted(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    tried, unchanged = 0, 0
    while unchanged < len(moves) and tried < left:
        source, target = moves[tried % len(moves)]
        order = list(best.overlap.sums or _as_ready(schedule, best.overlap))
        order.insert(target, order.pop(source))
        overlap = replace(best.overlap, sums=tuple(order))
        ns = period(compile(overlapped(schedule, overlap), hops, update="rolling"), vector).period_ns
        tried, unchanged = tried + 1, unchanged + 1
        if ns < best.ns:
            best, unchanged = Candidate(ns=ns, late=best.late, reordered=True, overlap=overlap), 0
    return best


def _as_ready(schedule: Schedule, overlap: Overlap) -> list[int]:
    orders = overlapped(schedule, overlap).orders
    return [action.stage for order in orders for action in order if action.kind is Kind.SYNC]


def sums_by_need(compiled: Compiled, vector: IntArray) -> tuple[int, ...]:
    """Orders the stages of one pipe by when their sums start if the most urgent sum always goes first.

    Args: `vector` is a duration vector of the compiled schedule.
    Returns: every stage once.
    """
    ends = _steady(compiled, vector)
    started: list[tuple[int, int]] = []
    for order, nodes in zip(compiled.schedule.orders, compiled.graph.actions, strict=True):
        ready = {a.stage: int(ends[node]) for a, node in zip(order, nodes, strict=True) if a.kind in LAST}
        urgency = {stage: place for place, (_, stage) in enumerate(first_uses(order))}
        clock = 0
        while ready:
            clock = max(clock, min(ready.values()))
            stage = min((s for s, at in ready.items() if at <= clock), key=urgency.__getitem__)
            del ready[stage]
            started.append((clock, stage))
            clock += int(vector[compiled.index(Kind.SYNC, stage)])
    return tuple(stage for _, stage in sorted(started, key=lambda each: each[0]))


def _steady(compiled: Compiled, vector: IntArray) -> IntArray:
    """Returns the ends of a step's nodes once steps follow each other."""
    ends = node_ends(compiled, vector)
    for _ in range(_STRIDES):
        ends = node_ends(compiled, vector, ends[compiled.graph.tails])
    return ends
