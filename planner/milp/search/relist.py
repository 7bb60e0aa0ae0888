"""What enters a search behind its first answers: variants with less memory, and orders listed anew.

Everything waits in a queue (`Waiting`), by what it takes at least. Each rescheduled order enters the search as a
configuration of its own (`grow`): an order is fixed within its configuration, because path rows hold for one order
only. So the library of orders grows between searches, never during one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from planner import limits
from planner.configurations import Configuration
from planner.cuts import CutProblem, Order
from planner.errors import BadInput
from planner.limits import SearchProgress
from planner.milp import infeasible
from planner.milp.search import pick
from planner.milp.search.candidates import Candidates
from planner.milp.write_plan import hops, stage_times
from planner.plan import Hop, StageTimes
from planner.proof import UNFIT_NS, Answer, descend, judge
from planner.schedule import Costs, Limits, Schedule, relistings
from planner.simulate import PART_NAMES

if TYPE_CHECKING:
    from planner.milp.search.state import SearchState
    from planner.proof import ConfigurationState

_LISTING_NS = 250_000.0  # work of rescheduling one action, by the meter


@dataclass(kw_only=True)
class Waiting:
    """The queue of configurations, by what they take at least."""

    state: SearchState
    every: list[Configuration] = field(default_factory=list)  # that ever waited
    known: set[Configuration] = field(default_factory=set)
    done: set[Configuration] = field(default_factory=set)  # that were looked into
    heap: list[tuple[float, int]] = field(default_factory=list)
    now: float = UNFIT_NS  # the bound of the configuration that is being examined

    def progress(self, known: int) -> SearchProgress:
        """Returns how far the search has come.

        Args: `known` configurations are there from the start.
        """
        state, every = self.state, max(known, len(self.every))
        best = state.limit if state.limit < UNFIT_NS else None
        spent = min(1.0, state.instance.meter.spent_ns / max(state.effort.work_ns, 1.0))
        if state.stage == "picked":  # not all of them wait yet
            done, bound = len(self.done), None
        else:
            left = [tried.bound_ns for tried in state.open if tried.bound_ns < state.limit]
            left += [ns for ns in (*state.left, *state.left_listed) if ns < state.limit]
            bound = int(min([state.limit, self.now, *(ns for ns, _ in self.heap[:1]), *left]))
            done = max(0, every - len(self.heap) - len(left))
        bound = None if bound == UNFIT_NS else bound
        return SearchProgress(done=done, all=every, best_ns=best, bound_ns=bound, spent=spent)

    def add(self, shape: Configuration) -> None:
        """Adds a configuration that never waited before."""
        if shape not in self.known:
            self.known.add(shape)
            heapq.heappush(self.heap, (self.state.promise_ns(shape), len(self.every)))
            self.every.append(shape)

    def bring_near(self) -> None:
        """Brings bounds near the best answer, the lowest first, and all of them before any comes nearer.

        What one glance does not bring near gets another by the linear program. Everything waits on with its bound.
        """
        state = self.state
        most = state.instance.meter.spent_ns + limits.NEAR_WORK * state.effort.work_ns
        if state.limit == UNFIT_NS or not state.effort.proves:
            return
        for rounds in (limits.ROUNDS, 0):
            met: list[tuple[float, int]] = []
            while self.heap and self.heap[0][0] <= (goal := int(state.limit * (1 - limits.NEAR))) - 1:
                bound, number = heapq.heappop(self.heap)
                shape, self.now = self.every[number], min([bound, *(ns for ns, _ in met)])
                if shape not in self.done and state.instance.meter.spent_ns < most:
                    bound = max(bound, pick.glance(state, shape, goal, rounds))
                    for variant in [] if shape.listed else list(state.faster(shape)):
                        self.add(variant)
                met.append((bound, number))
            for entry in met:
                heapq.heappush(self.heap, entry)
        self.now = UNFIT_NS

    def work_through(self) -> None:
        """Examines configurations, the lowest bound first, until the allowed work is done. Where memory narrows a
        configuration, variants with less memory join the queue; elsewhere, variants with faster updates.
        """
        self.bring_near()
        while self.heap and self.heap[0][0] <= self.state.limit - 1 and not self._enough(self.heap[0][0]):
            self.now, number = heapq.heappop(self.heap)
            if self.every[number] not in self.done:
                self.examine(self.every[number])
            self.now = UNFIT_NS
        self.bring_near()  # what joined the queue meanwhile
        for least, number in self.heap:
            if self.every[number] not in self.done:
                self.state.leave(self.every[number], least)
        self.heap.clear()

    def examine(self, shape: Configuration) -> None:
        """Takes a first look at a configuration, and adds the variants that it calls for."""
        self.add(shape)
        pick.bare_ns(self.state, shape)
        tight = self.state.examine(shape)
        first_of(self.state, shape)
        if not shape.listed:  # an order listed anew is for its own costs
            variants = pick.thriftier(self.state.instance, shape) if tight else self.state.faster(shape)
            for variant in list(variants):
                self.add(variant)
        self.done.add(shape)

    def leave(self, configurations: Candidates) -> None:
        """Leaves everything that was not looked into with its bound, as where the search was stopped.

        Args: `configurations` are all of the question, whether they waited or not.
        """
        for shape in configurations.below(self.state.limit):
            self.add(shape)
        self.state.left, self.state.left_listed = [], []
        for shape in self.every:
            if shape not in self.done:
                self.state.leave(shape, self.state.promise_ns(shape))

    def _enough(self, least: float) -> bool:
        if not self.state.effort.proves and self.state.limit < UNFIT_NS:
            return True
        spent = self.state.instance.meter.spent_ns
        most = limits.LOOKS * self.state.effort.work_ns
        return self.state.limit < UNFIT_NS and (spent > most or self.state.stale(least))


def first_of(state: SearchState, shape: Configuration) -> None:
    """Looks for a first plan in a configuration that a first look has left open: a proof would find it later, or never.

    Args: `state` has no plan yet, or nothing is done.
    """
    tried = state.tried.get(shape)
    left = tried is not None and tried.closing is not None and tried.closing.open
    if state.limit == UNFIT_NS and tried is not None and left:
        state.answer(tried, work_ns=limits.PICK_NS)


def nearest(state: SearchState, shapes: Iterable[Configuration]) -> None:
    """Takes the cut that lacks least memory as an answer, where it lacks none: so no plan is refused that fits.

    Args: `shapes` were looked into; where none of them is open, memory excludes all.
    """
    found = infeasible.closest(state.instance, shapes, state.look) if state.open else None
    if found is not None and found.short_bytes <= 0 and (tried := state.look(found.shape)) is not None:
        state.take(tried, Answer(cut=found.cut, ns=int(judge(tried.problem, found.cut[None, :])[0])))
        state.answer(tried)


def grow(state: SearchState) -> list[Configuration]:
    """Reschedules the best plans and answers the new configurations, until no better order enters.

    Args: `state` takes them up.
    Returns: the configurations that entered.
    """
    pinned = state.instance.pins
    if pinned.schedules and "listed" not in pinned.schedules:
        return []
    seen: set[tuple[object, ...]] = set()
    found: list[Configuration] = []
    for turn in range(limits.RELISTINGS):
        entered: list[ConfigurationState] = []
        for tried in _worth(state, 1 + (limits.RELISTED_FAMILIES if turn == 0 else 0)):
            key = (tried.shape, None if tried.answer is None else tried.answer.cut.tobytes())
            if key not in seen:
                seen.add(key)
                entered += _enter(state, tried)
        found += [tried.shape for tried in entered]
        if state.rugged:
            entered.sort(key=lambda tried: (tried.answer.ns if tried.answer else UNFIT_NS, tried.shape))
            for tried in entered[: limits.RELISTED_SETTLED]:
                state.settle(tried, limits.SETTLING[-1][1])
        if not entered:
            break
    return found


def _worth(state: SearchState, most: int) -> list[ConfigurationState]:
    """Returns the best plan, and of each other family the best plan that comes near it."""
    near = [
        t
        for t in state.tried.values()
        if t.answer is not None and t.answer.ns <= state.limit * (1 + limits.ALIKE)
    ]
    near.sort(key=lambda tried: (tried.answer.ns if tried.answer else UNFIT_NS, tried.shape))
    firsts: dict[str, ConfigurationState] = (
        {} if state.best is None else {state.best.shape.family: state.best}
    )
    for tried in near:
        firsts.setdefault(tried.shape.family, tried)
    return list(firsts.values())[:most]


def _enter(state: SearchState, tried: ConfigurationState) -> Iterator[ConfigurationState]:
    """Yields configurations with orders that make this plan faster, each with the best cut found for it."""
    answer = tried.answer
    problem = tried.problem if answer is None else tried.problem.settled(answer.cut)
    enough = state.instance.meter.spent_ns < state.effort.work_ns
    if answer is None or not enough or problem.stages == 1 or problem.order.actions > limits.RELISTED_ACTIONS:
        return
    better = []
    for schedule in _orders(problem, answer):
        again = len(Order(schedule).recomputing) == problem.stages
        name = hashlib.sha256(schedule.to_text().encode()).hexdigest()[:12]
        shape = replace(tried.shape, sparing=False, chosen=(), recompute=again, listed=name)
        state.instance.problems.enter(shape, schedule)
        new = state.look(shape)
        if new is not None and new.answer is None:
            ns = int(judge(new.problem, answer.cut[None, :])[0])
            if ns < answer.ns:
                better.append((ns, shape, new))
    for ns, _, new in sorted(better, key=lambda entry: entry[:2])[: limits.RELISTED_KEPT]:
        state.take(new, Answer(cut=answer.cut, ns=ns))
        spans = state.instance.windows(new.problem)
        if spans is not None:
            state.take(new, descend(new.problem, *spans, answer.cut))
            state.settle(new)
        yield new


def _orders(problem: CutProblem, answer: Answer) -> Iterator[Schedule]:
    """Yields orders with as many micro-batches in flight as the order itself, then with as many as memory allows."""
    costs = costs_of(stage_times(problem, answer.cut), hops(problem, answer.cut))
    known = {problem.schedule.orders}
    for room in (None, *([] if problem.order.recomputing else [_room(problem, answer)])):
        problem.meter.spent_ns += _LISTING_NS * problem.order.actions
        for schedule in _listed(problem.schedule, costs, room):
            if schedule.orders not in known:
                known.add(schedule.orders)
                yield schedule


def _listed(schedule: Schedule, costs: Costs, limits: Limits | None) -> list[Schedule]:
    try:
        return [listed for _, listed in relistings(schedule, costs, limits)]
    except BadInput:
        return []  # no order keeps to these limits


def _room(problem: CutProblem, answer: Answer) -> Limits:
    """Returns what activations may take on each worker."""
    low, high = answer.cut[:-1], answer.cut[1:]
    part = dict(zip(PART_NAMES, problem.moving_bytes(low, high).T, strict=True))
    saved, held = part.pop("saved") + part.pop("shared"), part.pop("held")
    work = sum(size for name, size in part.items() if name not in ("kept", "crossing"))  # at most all at once
    fixed = problem.fixed_bytes(low, high) @ problem.hosted.T
    most_work = (np.minimum(problem.hosted, 1) * work).max(1)
    free = np.maximum(problem.available_bytes - fixed - most_work, 0)
    return Limits(memory=tuple(free.tolist()), keep=tuple(saved.tolist()), held=tuple(held.tolist()))


def costs_of(times: Sequence[StageTimes], hops: Sequence[Hop]) -> Costs:
    """Returns a plan's own numbers as costs for the list scheduler, in nanoseconds.

    Args: `times` by stage; of `hops` only those between neighbours count, since the scheduler knows no others.
    """
    return Costs(
        forward=tuple(t.forward_ns for t in times),
        backward=tuple(t.backward_ns for t in times),
        input_grad=tuple(t.input_grad_ns for t in times),
        weight_grad=tuple(t.weight_grad_ns for t in times),
        recompute=tuple(t.recompute_ns for t in times),
        hops={(h.sender, h.receiver): h.ns for h in hops if abs(h.sender - h.receiver) == 1},
    )
