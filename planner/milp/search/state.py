"""Keeps what a search knows: configurations bounded or proved, the best cut; `search.py` decides what comes when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import comb
from typing import Literal

import numpy as np

from planner import limits
from planner.configurations import Configuration
from planner.cuts import CutProblem, RecomputeProblem
from planner.limits import Effort
from planner.milp import formulation
from planner.milp.instance import Instance
from planner.milp.problems import Rows
from planner.milp.search.candidates import plainest, short_bytes
from planner.milp.search.totals import TotalsBound
from planner.proof import (
    ROUNDING,
    UNFIT_NS,
    Answer,
    Box,
    ConfigurationProof,
    ConfigurationState,
    Windows,
    annealed,
    balanced,
    descend,
    fits_surely,
    silent_parts,
    stagewise_ns,
    starts,
    whole,
)


@dataclass(kw_only=True)
class SearchState:
    """The configurations looked into, the best plan met, and the bounds of what was left."""

    instance: Instance
    effort: Effort
    below: int = UNFIT_NS  # what a plan has to take less than
    floors: TotalsBound = field(init=False)
    best: ConfigurationState | None = None
    tried: dict[Configuration, ConfigurationState] = field(default_factory=dict)
    open: list[ConfigurationState] = field(default_factory=list)
    queue: list[Configuration] = field(default_factory=list)
    considered: int = 0
    listed: int = 0  # orders listed anew that entered
    left: list[int] = field(default_factory=list)  # bounds of shapes that were not looked into
    left_listed: list[int] = field(default_factory=list)  # of those whose orders were listed anew
    program: formulation.ProgramOutcome | None = None
    pays: dict[tuple[object, ...], bool] = field(default_factory=dict)  # shared updates, by their causes
    stage: Literal["picked", "settled", "proved"] = "picked"  # how far it came
    stopped: bool = False  # by the user
    rugged: bool = False  # whether annealing for longer still gained
    near: dict[Configuration, float] = field(default_factory=dict)  # bounds by a glance
    staged: dict[Configuration, float] = field(default_factory=dict)  # bounds stage by stage
    rows: Rows = field(default_factory=dict)  # of orders that several shapes have
    found_ns: float = 0.0  # what the meter showed when the best plan was found
    follow: Callable[[], None] = lambda: None  # tells whoever watches

    def __post_init__(self) -> None:
        self.floors = TotalsBound(self.instance)

    @property
    def limit(self) -> int:
        return self.below if self.best is None or self.best.answer is None else self.best.answer.ns

    def look(self, shape: Configuration) -> ConfigurationState | None:
        """Returns the state of a configuration; None where its family is impossible at these numbers."""
        self.follow()
        if shape not in self.tried and (problem := self.instance.problem(shape)) is not None:
            self.tried[shape] = ConfigurationState(shape=shape, problem=problem)
        return self.tried.get(shape)

    def answer(
        self, tried: ConfigurationState, root: Box | None = None, work_ns: float = limits.DESCENT_NS
    ) -> None:
        """Finds an answer by descent from the better of the even cuts, or from the most even cut that fits (`root`)."""
        problem = tried.problem
        spans = self.instance.windows(problem)
        if spans is None:
            return
        begun = spans[1][None] if np.equal(*map(problem.bounds, spans)).all() else starts(problem)
        start = begun[int(problem.times(begun, 0).argmin())]
        found = descend(problem, *spans, start, work_ns)
        if found is None:
            root = root or whole(problem, *spans)
            found = None if root is None else descend(problem, *spans, balanced(problem, root))
        if tried.closing is not None:
            tried.closing.record.aim(found, self.limit)
        self.take(tried, found)

    def settle(self, tried: ConfigurationState, times: int = 1) -> None:
        """Anneals the answer of a configuration; `times` as many neighbours are simulated as at first."""
        spans = self.instance.windows(tried.problem)
        if tried.answer is not None and spans is not None and not tried.problem.flagged:
            self.take(tried, annealed(tried.problem, *spans, tried.answer, self._proposals(tried, times)))

    def _proposals(self, tried: ConfigurationState, times: int) -> int:
        """Returns how many neighbours annealing simulates: no more than there are cuts."""
        problem, most = tried.problem, times * self.effort.proposals * (2 if tried.problem.flagged else 1)
        affordable = int(limits.ANNEAL_NS / (20_000 + 15 * problem.order.actions))
        return min(most, affordable, comb(problem.layers - 1, problem.stages - 1) - 1)

    def take(self, tried: ConfigurationState, answer: Answer | None) -> None:
        self.follow()
        if answer is not None and isinstance(tried.problem, RecomputeProblem):
            if answer.ns < self.limit:
                self.take(*self._decided(tried.problem, answer))
        elif answer is not None and answer.better(tried.answer):
            tried.answer = answer
            if tried.problem.silent is not None:
                self.take(self.tried[tried.shape], answer)
            elif answer.ns < self.limit:
                self.best, self.found_ns = tried, self.instance.meter.spent_ns

    def _decided(self, problem: RecomputeProblem, answer: Answer) -> tuple[ConfigurationState, Answer]:
        """Returns the configuration in which just the stages recompute that do in this answer."""
        again = tuple(sorted(problem.again(answer.cut)))
        known = self.look(replace(problem.shape, sparing=False, chosen=again))
        assert known is not None
        return known, replace(answer, cut=problem.bounds(answer.cut))

    def staged_ns(self, tried: ConfigurationState) -> float:
        """Returns the bound of all cuts, stage by stage; 0 where all neighbours talk, or none is known."""
        if tried.shape not in self.staged and self.limit < UNFIT_NS:
            known, asked = int(self.floors.free_ns(tried.shape)), not tried.problem.chained
            self.staged[tried.shape] = stagewise_ns(tried.problem, self.limit, known) if asked else 0.0
        return self.staged.get(tried.shape, 0.0)

    def close(self, tried: ConfigurationState) -> bool:
        """Takes a first look, which refutes a configuration or bounds it; returns whether memory narrows it."""
        plain = self.tried.get(replace(tried.shape, sparing=False)) if tried.problem.flagged else None
        known = None if plain is None else plain.closing
        spans = self.instance.windows(tried.problem)
        staged = self.staged_ns(tried)
        least = max(self.floors.summed_ns(tried.shape, talking=True), self.kept_ns(tried), staged)
        over = least > self.limit - 1
        self._look_at(tried, tried.problem.talking, None if over else spans, known)
        assert tried.closing is not None
        if tried.closing.open:
            self.open.append(tried)
        least = self._totals(tried, talking=False)
        tight = tried.closing.tight
        if spans is None or tried.problem.chained or least >= self.limit:
            return tight
        for apart, narrow in silent_parts(tried.problem, *spans):
            closing = ConfigurationProof(problem=apart, spans=narrow)
            part = ConfigurationState(shape=tried.shape, problem=apart, bound_ns=least, closing=closing)
            self.open.append(part)
            tight = tight or not fits_surely(apart, *narrow)
        return tight

    def kept_ns(self, tried: ConfigurationState) -> float:
        """Returns the bound of the cuts in which all neighbours talk, as far as an earlier search has proved one."""
        return self.instance.kept.bounds.get(tried.shape, 0.0) if tried.problem.roomless else 0.0

    def _totals(self, tried: ConfigurationState, *, talking: bool) -> int:
        """Returns the bound of a configuration's totals, its stages and its variants, but no more than the limit."""
        staged, bare = self.staged.get(tried.shape, 0.0), self._bare_ns(tried.shape)
        least = max(self.floors.summed_ns(tried.shape, talking=talking), staged, bare)
        return min(int(np.ceil(least - ROUNDING)), self.limit)

    def _look_at(
        self,
        tried: ConfigurationState,
        problem: CutProblem,
        spans: Windows | None,
        known: ConfigurationProof | None,
    ) -> None:
        """Takes a first look at cuts in these windows; `known` is the proof in which no stage recomputes, if any."""
        learnt = (problem.order, tried.shape.update, problem.silent or 0)
        tried.closing = ConfigurationProof(
            problem=problem,
            spans=spans,
            rows=self.rows.get(learnt, []) if known is None else known.rows,
            timed=None if known is None else known.timed,
        )
        tried.closing.look(tried.answer, self.limit)
        if known is None:
            self.rows[learnt] = tried.closing.rows
        if tried.closing.timed is not None and problem.roomless and not problem.silent:
            self.instance.kept.bounds[tried.shape] = max(tried.closing.timed[0], self.kept_ns(tried))
            self.near |= {tried.shape: self.kept_ns(tried)} if tried.problem.chained else {}
        self._learn(tried)

    def _learn(self, tried: ConfigurationState) -> None:
        assert tried.closing is not None
        self.take(tried, tried.closing.record.answer)
        totals = self._totals(tried, talking=tried.closing.problem.chained)
        tried.bound_ns = max(tried.closing.bound_ns, totals)

    def prove_alone(self, given: list[ConfigurationState]) -> bool:
        """Continues a few proofs, as far as they may go alone; returns whether none of them is left open."""
        most = min(self.effort.work_ns, self.instance.meter.spent_ns + limits.ALONE_NS)
        self.take_further(given, self.effort.nodes, most)
        return not any(map(self.is_left, given))

    def silent(self) -> list[ConfigurationState]:
        """Returns open cuts in which some neighbours do not talk, the lowest bound first."""
        found = [tried for tried in self.open if tried.problem.silent and tried.bound_ns < self.limit]
        return sorted(found, key=lambda x: x.turn)

    def look_closer(self, tried: ConfigurationState) -> bool:
        """Looks at cuts in which some neighbours do not talk; returns whether that moves their bound."""
        before, closing = tried.bound_ns, tried.closing
        if closing is not None:
            self._look_at(tried, tried.problem, closing.spans, None)
        return tried.bound_ns > before or not self.is_left(tried)

    def stale(self, least: float) -> bool:
        """Returns whether to look into nothing more: no better plan was found for long, and the bound stays.

        Args: all that was not looked into has this bound, or more.
        """
        allowed, below = self.effort.work_ns, min(int(np.ceil(least)), self.limit - 1)
        if self.best is None or self.instance.meter.spent_ns < self.found_ns + limits.STALE * allowed:
            return False
        crowd = sum(each.problem.silent is not None and each.bound_ns <= below for each in self.open)
        return crowd > limits.CROWD * allowed / limits.WORK_NS

    def take_further(
        self, given: list[ConfigurationState], nodes: int, work_ns: float, below: int = UNFIT_NS
    ) -> None:
        """Continues proofs below a bound: a few boxes of each, then ever more of the lowest, which bounds the search."""
        meter, least = self.instance.meter, min([below, *self.left, *self.left_listed])
        # Flags to be chosen come last: what is known of the others refutes most of them
        turns = sorted((int(x.problem.flagged), *x.turn, limits.BOXES, n) for n, x in enumerate(given))
        while turns and meter.spent_ns < work_ns:
            *_, boxes, number = heapq.heappop(turns)
            tried = given[number]
            if boxes <= nodes and tried.bound_ns < min(least, self.limit) and self.is_left(tried):
                self._prove(tried, max(1, boxes // tried.shape.stages), work_ns)
                heapq.heappush(turns, (2, *tried.turn, 4 * boxes, number))  # after all first turns

    def is_left(self, tried: ConfigurationState) -> bool:
        return tried.closing is not None and tried.closing.open and tried.bound_ns < self.limit

    def _prove(self, tried: ConfigurationState, boxes: int, work_ns: float) -> None:
        assert tried.closing is not None
        fresh = tried.closing.tree is None
        tried.closing.prove(tried.answer, self.limit, boxes, work_ns)
        self._learn(tried)
        root = tried.closing.root
        if fresh and root is not None and self.is_left(tried):
            if tried.problem.silent is None:
                self.answer(tried, root)
            known = tried.answer or tried.closing.record.answer
            if known is not None:
                found = annealed(tried.problem, root.low, root.high, known, self._proposals(tried, 4))
                tried.closing.record.aim(found, self.limit)
                self.take(tried, found)

    def least_ns(self, shape: Configuration) -> float:
        """Returns the lower bound by a configuration's totals; no more of it than is needed to rule it out."""
        plain = self.near.get(replace(shape, recompute=False, sparing=False, chosen=()), 0.0)
        # No cut takes less than where nothing recomputes
        least = max(self.floors.free_ns(shape), plain, self._bare_ns(shape))
        return least if least > self.limit - 1 else max(least, self.floors.summed_ns(shape))

    def _bare_ns(self, shape: Configuration) -> float:
        """Returns the bound of all variants of a configuration as far as one is known; see `pick.bare_ns`."""
        return self.instance.kept.bare.get(plainest(shape), (0.0, 0))[0]

    def promise_ns(self, shape: Configuration) -> float:
        """Returns the lower bound of a configuration and of the variants whose replicas share, which wait together."""
        if (least := self.floors.computed_ns(shape)) > self.limit - 1:
            return least
        state = [replace(shape, shard=True)] * self.instance.may_share(shape)
        return min(map(self.least_ns, (shape, *state, *self.instance.by_element(shape))))

    def examine(self, shape: Configuration) -> bool:
        """Rules a configuration out or takes a first look; returns whether memory narrows it."""
        if self.least_ns(shape) > self.limit - 1:
            return False
        if short_bytes(self.instance, shape) > 0:
            return True
        return (tried := self.look(shape)) is not None and self.close(tried)

    def leave(self, shape: Configuration, least: float) -> None:
        """Records the bound of what is not looked into."""
        if least <= self.limit - 1:
            (self.left_listed if shape.listed else self.left).append(int(np.ceil(least - ROUNDING)))

    def faster(self, shape: Configuration) -> Iterator[Configuration]:
        """Yields the variants whose replicas share by element, and the one with a sharded optimizer where that pays."""
        yield from (x for x in self.instance.by_element(shape) if self.least_ns(x) <= self.limit - 1)
        shared = replace(shape, shard=True)
        if not self.instance.may_share(shape) or self.least_ns(shared) > self.limit - 1:
            return
        plain, other = self.look(shape), self.look(shared)
        if plain is not None and other is not None and other.problem.updates_sooner(plain.problem, self.pays):
            yield shared
