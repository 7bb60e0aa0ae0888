"""Finds which cuts are possible: stages that a time limit allows, and stages that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from planner import limits
from planner.arrays import BoolArray, IntArray
from planner.cuts import CutProblem, Moments
from planner.proof.boxes import Box
from planner.proof.weights import Weights, empty, stack
from planner.schedule import Kind
from planner.simulate import undominated


def windows(problem: CutProblem) -> tuple[IntArray, IntArray]:
    """Returns the lowest and the highest value of every boundary without empty stages, and of every flag.

    Args: `problem` is the cut problem of one configuration, whatever cuts of it are asked for.
    Returns: [boundary, then flag] twice.
    """
    depth, layers = problem.stages, problem.layers
    low = np.array([*range(depth), layers], np.int64)
    high = np.array([0, *(layers - depth + p for p in range(1, depth)), layers], np.int64)
    return problem.pointed(low, 0), problem.pointed(high, 1)


def silent_parts(
    problem: CutProblem, low: IntArray, high: IntArray
) -> Iterator[tuple[CutProblem, tuple[IntArray, IntArray]]]:
    """Yields the problems of the cuts in which some neighbours do not talk, with their windows.

    Args: `low` and `high` are the windows of all cuts.
    """
    for boundary in problem.apart:
        part = problem.silent_at(boundary)
        narrow = quieted(part, low, high)
        if narrow is not None:
            yield part, narrow


def quieted(problem: CutProblem, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray] | None:
    """Returns windows as narrow as the silent boundary of a problem makes them; None where they hold no such cut.

    Args: `low` and `high` are [boundary, then flag].
    """
    p, least, most = problem.silent, *problem.quiet
    assert p
    begins, at, ends = ((int(low[b]), int(high[b])) for b in (p - 1, p, p + 1))
    layers = np.arange(at[0], at[1] + 1)
    nearest = np.minimum(layers - 1, begins[1]), np.maximum(layers + 1, ends[0])
    may = problem.allowed[layers] & (least[layers] <= nearest[0]) & (most[layers] >= nearest[1])
    may &= problem.tables.talk.ends[nearest[0], layers] > nearest[1]
    if not may.any():
        return None
    low, high, own = low.copy(), high.copy(), layers[may]
    low[p], high[p] = own[0], own[-1]
    low[p - 1] = max(begins[0], int(least[own].min()))
    high[p + 1] = min(ends[1], int(most[own].max()))
    return low, high


def reachable(problem: CutProblem, limit: float) -> bool:
    """Returns whether `head_p + N t_p + max(tail_p, sum and update of p) <= limit` can hold for every stage of some
    cut.

    Gradient sums count only what no other stage uses, so a stage of more layers never needs less. Hence the stage
    that reaches furthest is the best for the stages after it, and one pass decides.

    Args: the `problem` has one pipe with one stage a worker, in any order; `limit` is in nanoseconds.
    """
    forward, backward, inputs, weights, _ = problem.prefix_ns
    first, last_back = forward.min(0), backward.min(0)  # what lies on other stages may be on faster devices
    split = any(action.kind is Kind.I for order in problem.schedule.orders for action in order)
    back = inputs + weights if split else backward
    count, at, last = problem.shape.micros, 0, problem.layers
    hop, hops = problem.tables.talk.least, 0.0
    for p in range(problem.stages):
        if p > 0:
            hops += problem.latency_ns[p - 1, p] + hop * problem.byte_ns[p - 1, p]
        ends = np.arange(at + 1, last + 1)
        work = forward[p] * (2 if problem.shape.recompute else 1) + back[p]
        begin = np.full(len(ends), at)
        sync = problem.own_sync_ns(p, begin, ends)
        update = (sync + problem.handed_on_ns(p, begin, ends, sync)) * (not problem.bare)
        tail = 0 if split else last_back[at] + hops
        need = first[at] + hops + count * (work[ends] - work[at]) + np.maximum(tail, update)
        at += int(np.searchsorted(need, limit, side="right"))
        if at >= last:
            return True
        if need[0] > limit:
            return False
    return False


def every_cut(problem: CutProblem, low: IntArray, high: IntArray) -> Box | None:
    """Returns the box of all cuts of these windows without an empty stage, whatever their memory.

    Args: `low` and `high` are [boundary, then flag], as of `windows`.
    Returns: None where there is no cut.
    """
    edges = zip(problem.bounds(low), problem.bounds(high), strict=True)
    spans = [np.arange(a, b + 1) for a, b in edges]
    alive = tuple(_arcs(problem, p, begin, end) for p, (begin, end) in enumerate(pairwise(spans)))
    return Box(problem=problem, low=low, high=high, alive=alive).trimmed()


def _arcs(problem: CutProblem, stage: int, begins: IntArray, ends: IntArray) -> BoolArray:
    """Returns [begin, end]: which stages there are."""
    found: BoolArray = begins[:, None] < ends[None, :]
    joined = problem.joined(stage, begins, ends)
    found = found if joined is None else found & joined
    return found & problem.allowed[begins][:, None] & problem.allowed[ends][None, :]


def whole(problem: CutProblem, low: IntArray, high: IntArray) -> Box | None:
    """Returns the box of the cuts of these windows whose stages fit on their workers, each stage seen alone.

    Args: `low` and `high` are [boundary, then flag], as of `windows`.
    Returns: None where there is no cut.
    """
    box = every_cut(problem, low, high)
    return None if box is None else fitting(box)


def fitting(box: Box) -> Box | None:
    """Returns the box without the arcs of stages that do not fit on their workers.

    Args: `box`; each stage is seen alone.
    Returns: the same object where everything fits, None where nothing does.
    """
    problem = box.problem
    if (most_bytes(problem) <= problem.available_bytes).all():
        return box
    dead = [(shortage(problem, p, box) > 0) & box.alive[p] for p in range(problem.stages)]
    return box.without(dead) if any(d.any() for d in dead) else box


def most_bytes(problem: CutProblem) -> IntArray:
    """Returns [worker] bytes that no cut exceeds.

    Args: `problem`; each stage is taken as large as any stage can be, in each part of its memory.
    Returns: one upper bound a worker.
    """
    fixed = int(problem.fixed_grid.max())
    peaks = [int((rows @ problem.most_moving).max()) for rows in problem.part_moments]
    total: IntArray = np.array(peaks) + fixed * problem.hosted.sum(1)
    return total


def shortage(problem: CutProblem, p: int, box: Box) -> IntArray:
    """Returns [c_p, c_{p+1}] bytes that a stage alone lacks on the worst of its workers.

    Args: `p` is the stage; arcs lie in the windows of `box`.
    Returns: negative bytes where the stage fits.
    """
    worst: IntArray = np.minimum.reduce([_shortage(problem, p, box, flag) for flag in box.flags(p)])
    if problem.least is not None:
        fixed = box.cell(problem.fixed_grid, p)
        worst = np.minimum(worst, problem.least.plain_shortage(p, fixed, box.cell(problem.plain_grid, p)))
        worst = problem.least.parted_shortage(p, box.window(p)[:, None], box.window(p + 1)[None, :], worst)
    return worst


def _shortage(problem: CutProblem, p: int, box: Box, flag: int) -> IntArray:
    fixed, moving = box.cell(problem.fixed_grid, p), box.cell(problem.moving_grid(p, flag), p)
    worst: IntArray = np.full(fixed.shape, -(1 << 62), np.int64)
    known = set()
    for worker in np.flatnonzero(problem.hosted[:, p]):
        rows = problem.moments[worker].stage(p)
        counts = _undominated(rows.tobytes(), rows.shape[1])
        hosted, available = problem.hosted[worker, p], problem.available_bytes[worker]
        if (key := (counts.tobytes(), int(hosted), int(available))) not in known:
            known.add(key)
            peak = np.maximum.reduce([_weighted(moving, row) for row in counts.tolist()])
            worst = np.maximum(worst, fixed * hosted + peak - available)
    return worst


@lru_cache(maxsize=4096)
def _undominated(rows: bytes, parts: int) -> IntArray:
    return undominated(np.frombuffer(rows, np.int64).reshape(-1, parts))


def _weighted(parts: IntArray, counts: Sequence[int]) -> IntArray:
    total: IntArray = np.zeros(parts.shape[:-1], np.int64)
    for part, count in enumerate(counts):
        if count:
            total += count * parts[..., part]
    return total


def memory_weights(problem: CutProblem) -> Weights:
    """Returns rows of memory for the workers with several stages: `value <= 0` for every cut that fits.

    Args: `problem` with its order, which has the moments of each worker that can be its peak.
    Returns: one row a moment.
    """
    shared = np.count_nonzero(problem.hosted, axis=1) > 1
    return moment_weights(problem, [(w, each) for w, each in enumerate(problem.moments) if shared[w]])


def moment_weights(problem: CutProblem, given: Sequence[tuple[int, Moments]]) -> Weights:
    """Returns rows of memory for these moments of these workers.

    Args: `given` has pairs of a worker and its moments.
    Returns: one row a moment; `value <= 0` for every cut that fits.
    """
    found = []
    for worker, moments in given:
        rows = len(moments)
        fixed = np.repeat(problem.hosted[worker][None].astype(np.float64), rows, 0)
        limit = np.full(rows, -float(problem.available_bytes[worker]))
        rows_of = empty(rows, problem.stages)
        found.append(replace(rows_of, fixed=fixed, moving=moments.rows.astype(np.float64), constant=limit))
    return stack(found, problem.stages)


def binding(box: Box, rows: Weights) -> Weights:
    """Returns the rows of memory that some cut of the box may exceed.

    Args: `rows` of memory; each stage is taken as large as any of its arcs in the box.
    Returns: the rows without duplicates, in their order.
    """
    most = rows.constant.copy()
    for p, alive in enumerate(box.alive):
        used = np.flatnonzero(rows.fixed[:, p] + rows.moving[:, p].sum(1))
        if len(used):
            fixed = box.cell(box.problem.fixed_grid, p)[alive].astype(np.float64)
            grids = [box.cell(box.problem.moving_grid(p, flag), p)[alive] for flag in box.flags(p)]
            moving = np.maximum.reduce(grids).astype(np.float64)
            counts = np.column_stack([rows.fixed[used, p], rows.moving[used, p]])
            kinds, at = np.unique(counts, axis=0, return_inverse=True)
            largest = np.array([(fixed * own[0] + moving @ own[1:]).max() for own in kinds])
            most[used] += largest[at.ravel()]
    left = np.flatnonzero(most > 0)
    kept = {
        (rows.fixed[m].tobytes(), rows.moving[m].tobytes(), float(rows.constant[m])): m
        for m in left[::-1].tolist()
    }
    return rows.part(np.array(sorted(kept.values()), np.int64))


def fits_surely(problem: CutProblem, low: IntArray, high: IntArray) -> bool:
    """Returns whether every cut of the windows surely fits; False where the configuration chooses which stages
    recompute. Each stage is taken as large as any that the windows allow, in each part of its memory.

    Args: `low` and `high` are [boundary, then flag], as of `windows`.
    """
    if problem.flagged:
        return False
    if (most_bytes(problem) <= problem.available_bytes).all():
        return True
    if count_arcs(problem, low, high) > limits.ARCS:
        return False
    spans = [slice(a, b + 1) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    fixed = np.array([problem.fixed_grid[pair].max() for pair in pairwise(spans)])
    moving = np.array([problem.moving_grid(p)[pair].max((0, 1)) for p, pair in enumerate(pairwise(spans))])
    peaks = [int(each.bytes_of(moving).max()) for each in problem.moments]
    return bool((problem.hosted @ fixed + np.array(peaks) <= problem.available_bytes).all())


def count_arcs(problem: CutProblem, low: IntArray, high: IntArray) -> int:
    """Returns how many stages the cuts of these windows may have at most.

    Args: `low` and `high` are [boundary, then flag].
    """
    width = problem.bounds(high - low) + 1
    return int((width[:-1] * width[1:]).sum())
