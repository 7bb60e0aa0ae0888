"""Solves the program of layouts for a price of memory, with HiGHS where it is there and else with CBC.

Options that are worth the same to about a hundred-thousandth are told apart by a small charge that depends on their
places alone, so that every solver takes the same one.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pulp

from planner.choose.options import Decisions
from planner.choose.prices import HeldPrice

Solver = Literal["highs", "cbc"]
_TIE = 1e-7  # of the time: what options may differ by and count as equal
_UNITS = 1e6  # of the objective, for numbers that solvers like
_WHOLE = 1e-6  # what a whole number may be off by
_POSSIBLE = "doing everything alike is always possible"


@contextmanager
def as_named_today() -> Iterator[None]:
    """Keeps PuLP 3 from announcing what PuLP 4 will rename."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@dataclass(kw_only=True)
class Term:
    """A coefficient: nanoseconds of a step, and bytes of a rank."""

    ns: float = 0.0
    bytes: float = 0.0
    held: tuple[tuple[HeldPrice, ...], ...] = ()  # parameters, of each of which the cheapest way counts

    def at(self, price: float) -> float:
        """Returns the coefficient at a price of memory, in nanoseconds a byte."""
        ways = sum(min(way.ns + price * way.bytes for way in each) for each in self.held)
        return self.ns + price * self.bytes + ways


@dataclass(kw_only=True)
class LayoutProgram:
    """The program of a model on one mesh, which is solved for several prices of memory."""

    decisions: Decisions
    model: pulp.LpProblem
    chosen: list[list[pulp.LpVariable]]  # [decision][option]
    terms: list[tuple[pulp.LpVariable, Term]]
    _standing: _Standing | None = None  # HiGHS with this program, from its first price on

    def solve(self, price: float, solver: Solver | None = None) -> list[int]:
        """Returns the option of each decision that is best at a price of memory, in nanoseconds a byte."""
        with as_named_today():
            if (solver or ("highs" if pulp.HiGHS(msg=False).available() else "cbc")) == "cbc":
                self.model.setObjective(pulp.LpAffineExpression(self._objective(price)))
                self.model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, gapAbs=0.0))
                assert self.model.sol_status == pulp.LpSolutionOptimal, _POSSIBLE
                found: Sequence[float] = [x.varValue or 0.0 for row in self.chosen for x in row]
            else:
                if self._standing is None:
                    self._standing = _Standing.of(self.model, [x for row in self.chosen for x in row])
                found = self._standing.solve(self._objective(price))
        ends = itertools.accumulate(map(len, self.chosen))
        rows = [found[end - len(row) : end] for row, end in zip(self.chosen, ends, strict=True)]
        return [max(range(len(row)), key=row.__getitem__) for row in rows]

    def _objective(self, price: float) -> dict[pulp.LpVariable, float]:
        values: dict[pulp.LpVariable, float] = defaultdict(float)
        for variable, term in self.terms:
            values[variable] += term.at(price)
        scale = max(sum(max((values[x] for x in row), default=0.0) for row in self.chosen), 1e-9) / _UNITS
        objective = {x: value / scale for x, value in values.items() if value}
        for d, row in enumerate(self.chosen):
            for o, x in enumerate(row):
                charge = 1 + o + zlib.crc32(f"{d}:{o}".encode()) / 2**32
                objective[x] = objective.get(x, 0.0) + _TIE * _UNITS * charge / len(row) / len(self.chosen)
        return objective


@dataclass(kw_only=True)
class _Standing:
    """HiGHS with a program that keeps its rows, and is solved for one objective after another.

    Without integrality the program is solved from the end of the solve before. Mostly that has whole numbers, and is the
    answer then. Else all of the program is solved.
    """

    highs: Any  # of highspy, which has no types
    columns: list[pulp.LpVariable]
    whole: list[int]  # the columns that must be whole numbers

    @classmethod
    def of(cls, model: pulp.LpProblem, whole: Sequence[pulp.LpVariable]) -> _Standing:
        solver = pulp.HiGHS(msg=False, threads=1, gapRel=0.0, mip_abs_gap=0.0)
        solver.createAndConfigureSolver(model)
        model.setObjective(pulp.LpAffineExpression({}))
        solver.buildSolverModel(model)
        return cls(highs=model.solverModel, columns=model.variables(), whole=[x.index for x in whole])

    def solve(self, objective: Mapping[pulp.LpVariable, float]) -> list[float]:
        """Returns the values of the columns that must be whole numbers."""
        costs = np.array([objective.get(x, 0.0) for x in self.columns])
        self.highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        found = self._run(False)
        if found is None or any(min(x, 1.0 - x) > _WHOLE for x in found):
            self.highs.clearSolver()  # what is left of other solves may lead astray
            found = self._run(True)
        assert found is not None, _POSSIBLE
        return found

    def _run(self, integral: bool) -> list[float] | None:
        """Returns the values of the columns that must be whole numbers; None where no best ones were found."""
        from highspy import HighsModelStatus, HighsVarType  # slow to load

        kind = HighsVarType.kInteger if integral else HighsVarType.kContinuous
        for column in self.whole:
            self.highs.changeColIntegrality(column, kind)
        self.highs.run()
        if self.highs.getModelStatus() != HighsModelStatus.kOptimal:
            return None
        values = self.highs.getSolution().col_value
        return [values[column] for column in self.whole]
