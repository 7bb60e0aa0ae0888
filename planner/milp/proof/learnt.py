"""Keeps what is known of a configuration while it is proved: cuts simulated, rows learnt from them, the best answer."""

from __future__ import annotations

from planner.arrays import IntArray
from planner.milp.cut.problem import CutProblem
from planner.milp.proof.boxes import ROUNDING
from planner.milp.proof.multipliers import RowMixLP, RowPool
from planner.milp.search.descent import UNFIT_NS, Answer, fits

_GAIN = 1e-4  # share of the limit that a row between cuts must add to be of use
_SLOWER = 1.3


class ProofState:
    """The rows, cuts and best answer of one configuration, and the time that an answer has to beat."""

    def __init__(self, pool: RowPool, pinned: IntArray | None = None) -> None:
        """Begins without an answer; where a cut is pinned, no other cut can become one."""
        self.pool = pool
        self.pinned = pinned
        self.answer: Answer | None = None  # the best cut met, if it beat the limit when it was met
        self.limit = UNFIT_NS

    @property
    def problem(self) -> CutProblem:
        """Returns the cut problem that the rows and cuts belong to."""
        return self.pool.problem

    @property
    def most(self) -> float:
        """Returns the bound above which every cut below the limit is refuted: times are integers."""
        return self.limit - 1 + ROUNDING

    def aim(self, answer: Answer | None, limit: int) -> None:
        """Sets what is to be beaten, and the best cut known of this configuration.

        Args: `answer` replaces a worse one; `limit`, in nanoseconds, only ever falls.
        """
        if answer is not None and answer.better(self.answer):
            self.answer = answer
            self.limit = min(self.limit, answer.ns)
        self.limit = min(self.limit, limit)

    def around(self, cut: IntArray) -> None:
        """Learns the row of a cut, and the rows that appear where one worker is slower.

        Args: `cut` need not be new.
        """
        self.learn(cut)
        if self.problem.shape.update == "barrier":
            for row in self.problem.slowed(cut, _SLOWER):
                self.pool.add_row(row)

    def learn(self, cut: IntArray) -> int:
        """Simulates a cut, which may be a better answer, and adds its row where the pool does not refute the cut.

        Args: `cut` is simulated only where no row of the pool shows that it is too slow.
        Returns: its number in the pool.
        """
        number = self.pool.find(cut)
        if number is not None:
            return number
        number = self.pool.add_cut(cut)
        known = self.pool.values[:, number].max(initial=0.0)
        if self.problem.patterned and self._rough(number, known):
            return number
        if len(self.pool.rows) and known > self.limit + ROUNDING:
            return number
        row, value = self.problem.critical_of(self.pool.columns[number])
        if self.pinned is None or (cut[: len(self.pinned)] == self.pinned).all():
            self._consider(cut, value)
        if not len(self.pool.rows) or value > known:
            self.pool.add_row(row)
        return number

    def _rough(self, number: int, known: float) -> bool:
        """Returns whether a path between neighbours alone shows that a cut is no better answer."""
        row, value = self.problem.rough(self.pool.columns[number])
        if value > known:
            self.pool.add_row(row)
        return max(value, known) > self.most

    def _consider(self, cut: IntArray, ns: int) -> None:
        found = Answer(cut=cut, ns=ns)
        tied = ns == self.limit and self.answer is not None and found.better(self.answer)
        if (ns < self.limit or tied) and fits(self.problem, cut[None, :])[0]:
            self.answer, self.limit = found, ns

    def learn_between(self, game: RowMixLP, most: float) -> bool:
        """Adds the row of the game's mixture of cuts.

        Args: `most` is the value of the mixture by the rows known before, in nanoseconds.
        Returns: whether the new row refutes the mixture better by enough to be of use.
        """
        cuts, shares = game.mixture()
        if len(cuts) < 2 or (cuts[0] == cuts).all():
            return False
        self.pool.add_row(self.problem.critical_between(cuts, shares))
        found = {tuple(self.pool.cuts[k].tolist()): k for k in game.columns}
        values = self.pool.values[-1, [found[tuple(cut)] for cut in cuts.tolist()]]
        return bool(values @ shares > most + max(1.0, _GAIN * self.limit))
