"""Bounds the cuts of one order by mixtures of rows: a first look, and a linear program over the hull of all cuts.

The first look (`surrounded`) chooses multipliers over rows and cuts that grow in turn, and narrows windows. In the linear
program, each boundary is a mixture of places: the variables are the shares of these places. Rows are critical paths: sums
of functions of single boundaries (`separable.py`). Paths are simulated at the mixture of cuts that the program finds, and
near it. Its multipliers mix the rows into one, and the cut that is cheapest for that row is found exactly over all cuts.
What that cut takes is the lower bound, so nothing rests on the program's precision; its places become new variables.

    minimise T subject to
    path     T >= constant_r + sum_p sum_j h_rp(j) share_pj             for each row r
    one      sum_j share_pj = 1                                         for each boundary p
    order    sum_(j <= k + 1) share_(p+1)j <= sum_(j <= k) share_pj     where a mixture broke it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import highspy
import numpy as np

from planner import limits
from planner.arrays import FloatArray, IntArray
from planner.cuts import CutRow
from planner.proof.boxes import NOTHING, ROUNDING
from planner.proof.branch_and_bound import ProofState
from planner.proof.multipliers import RowMixLP
from planner.proof.separable import SeparableRows
from planner.proof.weights import Weights, stack, weigh

_SPREADS = (0.01, 0.03, 0.1, 0.1, 0.3, 0.3)  # of the durations of mixtures near the one found
_TOWARDS = (0.5, 0.2)  # shares of the way from the best mixture met to the one found
_NEAR = (1, 3, 9, 27)  # places beside those of a cut that the program begins with
_BROKEN = 1e-6  # share by which two boundaries may be out of order
_USED = 1e-9
_CLOSE = 1e-4  # share of the estimate by which a bound may stay below it
_KEPT = 4  # mixtures that were best in their time, to narrow windows by
_PATIENCE = 10  # mixtures without a better bound, before the tree takes over
_GAIN = 2e-4  # share of the limit that a bound must gain to count as better
_TRIAL, _HOPE = 40, 0.6  # mixtures tried in any case; a bound below that share of the limit is left
_NARROWINGS = 3

Kind = Literal["one", "path", "order"]
Windows = tuple[IntArray, IntArray]  # the least and the largest point


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A solution of the program: its value, the shares [boundary, place], and the row that its multipliers mix."""

    ns: float
    shares: FloatArray
    row: Weights


class HullProgram:
    """The linear program, as it grows by rows and by places."""

    def __init__(self, lines: SeparableRows, low: IntArray, high: IntArray, scale: float) -> None:
        """Begins without rows and places; cuts lie between `low` and `high`, and times are in parts of `scale`."""
        self.lines, self.low, self.high, self.scale = lines, low, high, scale
        spans = lines.spans(low, high)
        sizes = [last - first for first, last in spans]
        self.first = np.array([first for first, _ in spans], np.int64)
        self.offset = np.concatenate([[0], np.cumsum(sizes)])  # of a boundary among the places of all
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.rows: list[CutRow] = []
        self.used: IntArray = np.zeros(0, np.int64)  # rows that the last solution mixes
        self._known: set[bytes] = set()
        self._heights: list[FloatArray] = []  # [row][place of any boundary]
        self._columns: list[int] = []
        self._orders: list[tuple[int, int]] = []
        self._kinds: list[tuple[Kind, int]] = [("one", p) for p in range(len(sizes))]
        self.pattern, self.messages = lines.messages(low, high)
        self.lp: highspy.Highs = highspy.Highs()  # type: ignore[no-untyped-call]
        self.lp.setOptionValue("output_flag", False)
        self.lp.setOptionValue("threads", 1)
        self.lp.addVar(-1e6, 1e6)
        self.lp.changeColCost(0, 1.0)
        for _ in sizes:
            self.lp.addRow(1.0, 1.0, 0, np.zeros(0, np.int32), np.zeros(0))

    def add_rows(self, given: Iterable[CutRow]) -> bool:
        """Adds rows, without those that say nothing of some cut; returns whether any was new."""
        new = {row.kinds.tobytes() + row.cells.tobytes() + row.counts.tobytes(): row for row in given}
        new = {key: row for key, row in new.items() if key not in self._known}
        self._known |= new.keys()
        if not new:
            return False
        rows = list(new.values())
        parts, constants = self.lines.parts(
            stack([weigh(row) for row in rows], self.lines.problem.stages), self.low, self.high
        )
        table = np.concatenate(parts, 1)
        for k in np.flatnonzero((table.min(1) > NOTHING / 2) & (constants > NOTHING / 2)).tolist():
            self.rows.append(rows[k])
            self._heights.append(table[k])
            self._kinds.append(("path", len(self.rows) - 1))
            at = np.arange(len(self._columns) + 1, dtype=np.int32)
            values = np.concatenate([[1.0], -table[k, self._columns] / self.scale])
            self.lp.addRow(float(constants[k]) / self.scale, highspy.kHighsInf, len(at), at, values)
        return True

    def add_cut(self, cut: IntArray, near: Iterable[int] = (0,)) -> bool:
        """Adds the places of a cut, and places so far from them; returns whether any was new."""
        here = np.searchsorted(self.lines.places, cut[: len(self.first)]) - self.first
        every: list[int] = []
        for step in near:
            inside = (here + step >= 0) & (here + step < np.diff(self.offset))
            every += (self.offset[:-1] + here + step)[inside].tolist()
        new = sorted(set(every).difference(self._columns))
        for place in new:
            self._columns.append(place)
            values = np.array([self._entry(kind, k, place) for kind, k in self._kinds])
            at = np.flatnonzero(values).astype(np.int32)
            self.lp.addCol(0.0, 0.0, 1.0, len(at), at, values[at])
        return bool(new)

    def _entry(self, kind: Kind, k: int, place: int) -> float:
        if kind == "path":
            return -float(self._heights[k][place]) / self.scale
        p = int(self.owner[place])
        if kind == "one":
            return float(k == p)
        (before, at), j = self._orders[k], int(self.first[p] + place - self.offset[p])
        return float(p == before + 1 and j <= at + 1) - float(p == before and j <= at)

    def _add_orders(self, shares: FloatArray) -> None:
        """Adds the rows of order that a mixture breaks most, one for each boundary."""
        past = shares.cumsum(1)
        over = past[2:-1, 1:] - past[1:-2, :-1]
        for p in np.flatnonzero(over.max(1, initial=0.0) > _BROKEN).tolist():
            self._orders.append((p + 1, int(over[p].argmax())))
            self._kinds.append(("order", len(self._orders) - 1))
            entries = [self._entry("order", len(self._orders) - 1, place) for place in self._columns]
            values = np.array([0.0, *entries])
            at = np.flatnonzero(values).astype(np.int32)
            self.lp.addRow(-highspy.kHighsInf, 0.0, len(at), at, values[at])

    def solve(self) -> Mixture | None:
        """Returns the solution of the program as it stands, which grows by rows of order; None where there is none."""
        self.lines.problem.meter.solved(len(self._kinds) * len(self._columns) // 4)
        count = len(self._kinds)
        self.lp.run()
        if self.lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self.lp.getSolution()
        held, duals = np.array(solution.col_value), abs(np.array(solution.row_dual))
        shares = np.zeros((len(self.first), len(self.lines.places)))
        columns = np.array(self._columns, np.int64)
        own = self.owner[columns]
        shares[own, self.first[own] + columns - self.offset[own]] = held[1:].clip(0.0)
        self._add_orders(shares)
        weight = duals[[r for r in range(count) if self._kinds[r][0] == "path"]]
        self.used = np.flatnonzero(weight > _USED)
        if not len(self.used):
            return None
        mixed = stack([weigh(self.rows[r]) for r in self.used.tolist()], self.lines.problem.stages)
        share = weight[self.used] / weight[self.used].sum()
        return Mixture(ns=float(held[0]) * self.scale, shares=shares, row=mixed.mixed(share))


def hull_bound(
    record: ProofState, lines: SeparableRows, low: IntArray, high: IntArray, rounds: int
) -> tuple[float, list[Weights]]:
    """Returns the bound of all cuts between two others, and the mixed rows that were best in their time.

    Args: `record` has the limit, and takes the rows that the bound rests on; at most `rounds` mixtures are tried.
    """
    problem, random = lines.problem, np.random.default_rng(0)
    loads = stack([weigh(row) for row in problem.loads()], problem.stages)
    _, start = lines.least(loads.mixed(np.full(len(loads), 1 / len(loads))), low, high)
    if not len(start):
        return np.inf, []
    program, known = HullProgram(lines, low, high, float(record.limit)), record.pool.useful()
    program.add_rows([*problem.loads(), *known])
    program.add_cut(start, [0, *(sign * step for step in _NEAR for sign in (-1, 1))])
    bound, best, upper = 0.0, list[Weights](), np.inf
    centre: FloatArray | None = None
    for _ in range(rounds):
        if (solved := program.solve()) is None:
            break
        least, cut = lines.least(solved.row, low, high)
        if least > bound:
            bound, best = least, [solved.row, *best[: _KEPT - 1]]
        if bound > record.most or bound > upper * (1 - _CLOSE) or not len(cut):
            break
        points = [solved.shares]
        if centre is not None:
            points += [centre + t * (solved.shares - centre) for t in _TOWARDS]
        table = np.stack([lines.durations(each, program.messages) for each in points])
        spread = np.array(_SPREADS)[:, None] * random.standard_normal((len(_SPREADS), table.shape[1]))
        rows, ns = problem.critical_along(np.concatenate([table, table[0] * np.exp(spread)]), program.pattern)
        if ns < upper:
            upper, centre = ns, solved.shares
        grown = program.add_rows(rows)
        if not program.add_cut(cut) and not grown:
            break
    for row in (program.rows[r] for r in program.used.tolist()):
        if not any(row is each for each in known):
            record.pool.add_row(row)
            record.pool.used[-1] += 1
    return bound, best


def surrounded(
    record: ProofState, lines: SeparableRows, spans: Windows, rounds: int
) -> tuple[float, Windows | None]:
    """Bounds all cuts of the windows, and narrows the windows to the cuts below the limit.
    Args: `lines` prices the rows of `record`; at most `rounds` mixtures of rows are tried, 0 asks for the linear program.
    Returns: the lower bound, and the windows; None for the windows where no cut is below the limit.
    """
    many = record.problem.stages > limits.HULL_STAGES
    if many or (rounds and not record.problem.silent):
        bound, mixtures = _squeezed(record, lines, spans, rounds or 2 * limits.ROUNDS)
    else:
        bound, mixtures = hull_bound(record, lines, *spans, limits.ROUNDS * 2)
    if bound > record.most:
        return bound, None
    active = record.pool.part(record.pool.active())
    rows = stack([active, *mixtures], record.problem.stages)
    for _ in range(_NARROWINGS):
        narrow = lines.narrowed(rows, record.most, *spans)
        if narrow is None:
            return record.most + ROUNDING, None
        if (narrow[0] == spans[0]).all() and (narrow[1] == spans[1]).all():
            break
        spans = narrow
    return bound, spans


def _squeezed(
    record: ProofState, lines: SeparableRows, spans: Windows, rounds: int
) -> tuple[float, list[Weights]]:
    """Returns the bound of the best mixture of rows, and the mixtures that were best in their time."""
    pool, bound, mixtures = record.pool, 0.0, list[Weights]()
    chosen = pool.inside(*spans)
    since, marked = 0, 0.0
    game: RowMixLP | None = None
    for turn in range(rounds):
        if game is None or not game.grow():
            game = RowMixLP(pool, chosen, float(record.limit), ample=True)
        solved = game.solve()
        if solved is None:
            break
        most, mixed = solved
        value, cut = lines.least(mixed, *spans)
        if value > bound:
            bound, mixtures = value, [mixed, *mixtures[:4]]
        since = 0 if bound > marked + _GAIN * record.limit else since + 1
        marked = bound if since == 0 else marked
        hopeless = turn >= _TRIAL and bound < _HOPE * record.limit
        if bound > record.most or (turn >= _TRIAL and since > _PATIENCE) or hopeless or not len(cut):
            break
        between = record.learn_between(game, most)
        if pool.find(cut) not in chosen:
            chosen.append(record.learn(cut))
            game.add(chosen[-1])
        elif not between:
            break
    return bound, mixtures
