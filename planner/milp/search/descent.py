"""Finds first answers: cuts by descent and seeded kicks, where all neighbours of a cut are simulated at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.arrays import BoolArray, FloatArray, IntArray
from planner.milp import limits
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.stage_costs import COMPUTE
from planner.milp.proof.boxes import Box
from planner.schedule import Kind

UNFIT_NS = 1 << 60  # the time of a cut that does not fit
_STEPS = (1, 2, 4, 8)
_TURNED = 0.3  # share of the flags that a kick turns


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A cut and the simulated nanoseconds of its step."""

    cut: IntArray
    ns: int

    def better(self, other: Answer | None) -> bool:
        """Returns whether this answer is faster, or as fast with the lexicographically smaller boundaries.

        Args: any answer is better than None.
        """
        return other is None or (self.ns, self.cut.tolist()) < (other.ns, other.cut.tolist())


def judge(problem: CutProblem, cuts: IntArray, most: int | None = None) -> IntArray:
    """Simulates cuts.

    Args: `cuts` is [cut, point]; beyond `most` nanoseconds, a result only says that it is more.
    Returns: [cut] nanoseconds, UNFIT_NS where a worker's memory is exceeded.
    """
    fitting = fits(problem, cuts)
    out: IntArray = np.full(len(cuts), UNFIT_NS, np.int64)
    if fitting.any():
        out[fitting] = problem.times(cuts[fitting], most)
    return out


def fits(problem: CutProblem, cuts: IntArray) -> BoolArray:
    """Returns whether cuts fit in the memory of every worker.

    Args: `cuts` is [cut, point].
    Returns: [cut] truth values.
    """
    within: BoolArray = np.asarray((problem.memory(cuts) <= problem.available_bytes).all(1))
    return within


def descend(problem: CutProblem, low: IntArray, high: IntArray, start: IntArray) -> Answer | None:
    """Descends steeply over moves of single boundaries and blocks of them, until no move helps or the work is spent.

    Args: cuts stay between `low` and `high`; `start` need not fit.
    Returns: the best answer met; None where neither the start nor a neighbour of it fits.
    """
    best = _pick(problem, start[None, :])
    moves = neighbours(problem)
    stop_ns = problem.meter.spent_ns + limits.DESCENT_NS
    while True:
        near = allowed(problem, (best.cut if best else start) + moves, low, high)
        most = None if best is None else best.ns
        found = _pick(problem, near, most) if len(near) else None
        if found is None or not found.better(best):
            return best
        best = found
        if problem.meter.spent_ns > stop_ns:
            return best


def _pick(problem: CutProblem, cuts: IntArray, most: int | None = None) -> Answer | None:
    ns = judge(problem, cuts, most)
    least = int(ns.min())
    if least == UNFIT_NS:
        return None
    tied = cuts[ns == least]
    return Answer(cut=min(tied, key=lambda c: c.tolist()), ns=least)


def allowed(problem: CutProblem, points: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Returns the points between two others that are cuts of the model without an empty stage.

    Args: `points` is [cut, point]; `low` and `high` are points.
    """
    inside: BoolArray = np.asarray((points >= low).all(1) & (points <= high).all(1))
    edges = problem.bounds(points)
    inside &= (np.diff(edges) > 0).all(1)
    inside[inside] = problem.allowed[edges[inside]].all(1)
    found: IntArray = points[inside]
    return found


def neighbours(problem: CutProblem) -> IntArray:
    """Returns moves to the neighbours of a cut: of boundaries, and of flags where there are some.

    Args: `problem` says how many boundaries and flags a point has.
    Returns: [move, point] differences.
    """
    stages, first_flag = problem.stages, problem.stages + 1
    longest = stages - 1 if stages <= 16 else limits.LONGEST_BLOCK
    edges = _edge_moves(stages, longest)
    moves: IntArray = np.zeros((len(edges), problem.width), np.int64)
    moves[:, :first_flag] = edges
    flags = np.eye(problem.width, dtype=np.int64)[first_flag:]
    return np.concatenate([moves, flags, -flags])


def _edge_moves(stages: int, longest: int) -> IntArray:
    rows = []
    for first in range(1, stages):
        for last in range(first, min(stages, first + longest)):
            for step in _STEPS if first == last else (1,):
                row = np.zeros(stages + 1, np.int64)
                row[first : last + 1] = step
                rows += [row, -row]
    return np.array(rows, np.int64).reshape(-1, stages + 1)


def kicked(problem: CutProblem, low: IntArray, high: IntArray, best: Answer, rounds: int) -> Answer:
    """Runs descents from random neighbours of the best cut; the seed is fixed, so the answer is too.

    Args: `rounds` kicks of `best`, between `low` and `high`.
    Returns: the best answer met, which may be `best`.
    """
    random = np.random.default_rng(0)
    for _ in range(rounds):
        noise = random.integers(-3, 4, problem.stages + 1)
        start = best.cut.copy()
        edges = np.clip(problem.bounds(best.cut) + noise, problem.bounds(low), problem.bounds(high))
        start[: len(edges)] = edges = np.maximum.accumulate(edges)
        if problem.flagged:
            start[len(edges) :] ^= random.random(problem.stages) < _TURNED
        if (np.diff(edges) > 0).all() and problem.allowed[edges].all():
            found = descend(problem, low, high, start)
            if found is not None and found.better(best):
                best = found
    return best


def balanced(problem: CutProblem, box: Box) -> IntArray:
    """Returns the cut of the box whose largest stage takes least, by a bottleneck path.

    Args: `box` has at least one cut.
    """
    line = work_ns(problem)
    works = [
        box.blocked[p] + line[box.window(p + 1)][None, :] - line[box.window(p)][:, None]
        for p in range(problem.stages)
    ]
    return problem.pointed(box.bottleneck(works), 1)


def even(problem: CutProblem) -> IntArray:
    """Returns a cut of about equal work a stage, whatever its memory.

    Args: `problem` supplies the work of layers.
    """
    return near(problem, work_ns(problem))


def near(problem: CutProblem, line: IntArray | FloatArray) -> IntArray:
    """Returns a cut whose stages have about equal shares of what grows along the layers as `line`.

    Args: `line` has a value before each layer and one after the last.
    """
    depth = problem.stages
    places = np.flatnonzero(problem.allowed)
    goal = np.searchsorted(line[places], np.linspace(0.0, float(line[-1]), depth + 1))
    last = len(places) - 1
    goal[0], goal[-1] = 0, last
    for p in range(1, depth):
        goal[p] = min(max(goal[p], goal[p - 1] + 1), last - depth + p)
    return problem.pointed(places[goal].astype(np.int64), 1)


def work_ns(problem: CutProblem) -> IntArray:
    """Returns the work before each layer, in nanoseconds of the first stage's device.

    Args: `problem`; recomputation counts where all stages recompute.
    Returns: [layer + 1] sums of forward and backward.
    """
    kinds = [Kind.F, Kind.B, *([Kind.R] if problem.shape.recompute else [])]
    total: IntArray = problem.prefix_ns[[COMPUTE.index(kind) for kind in kinds], 0].sum(0)
    return total
