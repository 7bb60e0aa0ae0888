"""Solves the program of layouts for a price of memory, with HiGHS where it is there and else with CBC.

Options that are worth the same to about a hundred-thousandth are told apart by a small charge that depends on their
places alone, so that every solver takes the same one.
"""

from __future__ import annotations

import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import pulp

from planner.choose.options import Decisions
from planner.choose.prices import HeldPrice

Solver = Literal["highs", "cbc"]
_TIE = 1e-7  # of the time: what options may differ by and count as equal
_UNITS = 1e6  # of the objective, for numbers that solvers like


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

    def solve(self, price: float, solver: Solver | None = None) -> list[int]:
        """Returns the option of each decision that is best at a price of memory, in nanoseconds a byte."""
        with as_named_today():
            self._set_objective(price)
            _run(self.model, solver or ("highs" if pulp.HiGHS(msg=False).available() else "cbc"))
        return [max(range(len(row)), key=lambda i: row[i].varValue or 0.0) for row in self.chosen]

    def _set_objective(self, price: float) -> None:
        values: dict[pulp.LpVariable, float] = defaultdict(float)
        for variable, term in self.terms:
            values[variable] += term.at(price)
        scale = max(sum(max((values[x] for x in row), default=0.0) for row in self.chosen), 1e-9) / _UNITS
        objective = {x: value / scale for x, value in values.items() if value}
        for d, row in enumerate(self.chosen):
            for o, x in enumerate(row):
                charge = 1 + o + zlib.crc32(f"{d}:{o}".encode()) / 2**32
                objective[x] = objective.get(x, 0.0) + _TIE * _UNITS * charge / len(row) / len(self.chosen)
        self.model.setObjective(pulp.LpAffineExpression(objective))


def _run(model: pulp.LpProblem, solver: Solver) -> None:
    if solver == "highs":
        model.solve(pulp.HiGHS(msg=False, threads=1, gapRel=0.0, mip_abs_gap=0.0))
    else:
        model.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, gapRel=0.0, gapAbs=0.0))
    assert model.sol_status == pulp.LpSolutionOptimal, "doing everything alike is always possible"
