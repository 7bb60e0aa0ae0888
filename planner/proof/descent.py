"""Finds answers: cuts by descent and by seeded annealing, where many neighbours of a cut are simulated at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner import limits
from planner.arrays import BoolArray, FloatArray, IntArray
from planner.cuts import COMPUTE, CutProblem
from planner.proof.boxes import Box
from planner.proof.weights import PathRows
from planner.schedule import Kind

UNFIT_NS = 1 << 60  # the time of a cut that does not fit
_STEPS = (1, 2, 4, 8)
_HOT, _COLD = 1e-2, 3e-4  # of the first answer: the heat of annealing at first and at last
_FEWEST, _MOST = 16, 256  # neighbours simulated at once
_LONE, _TWO = 0.6, 0.5  # shares of moves that move a lone boundary, and another one besides
_SMALL = 0.25  # of the boundaries, those with the smallest messages: a cut of them alone is a start too
_TURNED = 0.5  # flags that a move turns, on average


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
    if not len(cuts):
        return np.zeros(0, np.bool_)
    within = problem.roomy(cuts)
    if len(unsure := np.flatnonzero(~within)):
        within[unsure] = (problem.memory(cuts[unsure]) <= problem.available_bytes).all(1)
    return within


def descend(
    problem: CutProblem, low: IntArray, high: IntArray, start: IntArray, work_ns: float = limits.DESCENT_NS
) -> Answer | None:
    """Descends steeply over moves of boundaries and blocks of them, until no move helps or the work is spent.

    Moves that help and do not touch each other are also made together.

    Args: cuts stay between `low` and `high`; `start` need not fit; `work_ns` is by the meter.
    Returns: the best answer met; None where neither the start nor a neighbour of it fits.
    """
    best = _pick(problem, start[None, :])
    moves = neighbours(problem)
    stop_ns = problem.meter.spent_ns + work_ns
    while True:
        here = best.cut if best else start
        near = allowed(problem, here + moves, low, high)
        most = None if best is None else best.ns
        ns = judge(problem, near, most)
        found = _least(near, ns)
        if found is None or not found.better(best):
            return best
        better = np.flatnonzero(ns < (UNFIT_NS if most is None else most))
        ranked = near[better[np.argsort(ns[better], kind="stable")]]
        together = allowed(problem, _together(here, ranked), low, high)
        best = found
        found = _pick(problem, together, best.ns) if len(together) else None
        best = found if found is not None and found.better(best) else best
        if problem.meter.spent_ns > stop_ns:
            return best


def _together(here: IntArray, better: IntArray) -> IntArray:
    """Returns points where the moves to more and more of the better neighbours are made at once.

    Args: `better` are neighbours of `here`, the best first; moves that touch one made before are left out.
    """
    at, found = here, []
    for point in better[: limits.TOGETHER]:
        if not ((at != here) & (point != here)).any():
            at = at + point - here
            found.append(at)
    return np.array(found[1:], np.int64).reshape(-1, len(here))


def _pick(problem: CutProblem, cuts: IntArray, most: int | None = None) -> Answer | None:
    return _least(cuts, judge(problem, cuts, most))


def _least(cuts: IntArray, ns: IntArray) -> Answer | None:
    least = int(ns.min(initial=UNFIT_NS))
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


def annealed(problem: CutProblem, low: IntArray, high: IntArray, best: Answer, proposals: int) -> Answer:
    """Anneals an answer as far as its work goes, then descends from the best cut; the seed is fixed, so the answer is too.

    Many neighbours are simulated at once, and the first that is good enough is taken: as many as were needed last.

    Args: `proposals` counts the neighbours simulated; cuts stay between `low` and `high`.
    Returns: the best answer met, which may be `best`.
    """
    random, at, ns, done, many = np.random.default_rng(0), best.cut, best.ns, 0, _FEWEST
    first, paths = best.ns, PathRows(problem)
    stop_ns = problem.meter.spent_ns + limits.ANNEAL_NS
    while done < proposals and problem.meter.spent_ns < stop_ns:
        heat = first * _HOT * (_COLD / _HOT) ** (done / proposals)
        points = allowed(problem, at + _moves(random, problem, many), low, high)
        allow = ns - heat * np.log(random.random(len(points)))
        done, many = done + many, min(2 * many, _MOST)
        if not len(points):
            continue
        took = paths.times(points, allow)
        taken = np.flatnonzero(took < allow)
        asked = taken[
            (took[taken] <= best.ns) | (taken == taken[:1])
        ]  # others matter only where the first is too large
        fitting = asked[fits(problem, points[asked])]
        if len(taken) and taken[0] not in fitting:
            fitting = taken[fits(problem, points[taken])]
        if len(fitting):
            many = min(many, max(_FEWEST, 4 * int(fitting[0] + 1)))
            at, ns = points[fitting[0]], int(took[fitting[0]])
            found = _least(points[fitting], took[fitting])
            best = found if found is not None and found.better(best) else best
    found = descend(problem, low, high, best.cut)
    return found if found is not None and found.better(best) else best


def _moves(random: np.random.Generator, problem: CutProblem, many: int) -> IntArray:
    """Returns random moves of a block of boundaries, of a lone boundary besides, and of a flag where there are some.

    Returns: [move, point] differences.
    """
    depth = problem.stages
    moves: IntArray = np.zeros((many, problem.width), np.int64)
    if depth > 1:
        first, lone = random.integers(1, depth, (2, many, 1))
        last = first + np.where(random.random((many, 1)) < _LONE, 1, random.geometric(0.4, (many, 1)))
        # steps of all sizes alike: within a block of layers and past it
        widest = np.log(max(2.0, problem.layers / depth))
        steps = np.exp(random.random((2, many, 1)) * widest).astype(np.int64)
        far, other = random.choice([-1, 1], (2, many, 1)) * steps
        edges = np.arange(depth + 1)
        moves[:, : depth + 1] = far * ((edges >= first) & (edges < np.minimum(last, depth)))
        moves[:, : depth + 1] += other * (edges == lone) * (random.random((many, 1)) < _TWO)
    if problem.flagged:
        turned = random.random((many, depth)) < _TURNED / depth
        moves[:, depth + 1 :] = turned * random.choice([-1, 1], (many, depth))
    return moves


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


def starts(problem: CutProblem) -> IntArray:
    """Returns even cuts: of all boundaries, and of those with small messages alone, as between blocks of layers.

    Args: `problem` supplies the work of layers and the bytes that cross boundaries.
    Returns: [cut, point].
    """
    places = np.flatnonzero(problem.allowed)[1:-1]
    size = problem.tables.talk.least_bytes[:, places].sum(0)
    if problem.stages < 2 or not len(places):
        return even(problem)[None]
    small = places[size <= np.quantile(size, _SMALL)]
    kept = np.zeros_like(problem.allowed)
    kept[[0, *small.tolist(), problem.layers]] = True
    if np.count_nonzero(kept) <= problem.stages:
        return even(problem)[None]
    block = even(replace(problem, allowed=kept))
    return np.unique(np.stack([even(problem), block]), axis=0)


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
