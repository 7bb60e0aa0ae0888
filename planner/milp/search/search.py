"""The course of a search: which configurations are looked into, and when.

First answers come from the most promising configurations and from the trivial plans, and orders listed anew for the
best of them. Then configurations are taken up as their totals (`planner.milp.proof.totals`) bound them, the lowest
first. What is left when the work allowed for that is done is bounded by the next one, and nothing was spent on what
could not be the least. At last the mixed-integer program states the proof over whatever is still open.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from planner.errors import Infeasible
from planner.milp import formulation, infeasible, limits
from planner.milp.configurations.configurations import Configuration
from planner.milp.instance import Instance
from planner.milp.limits import Effort, SearchProgress
from planner.milp.problems import Rows
from planner.milp.proof.boxes import ROUNDING, Box
from planner.milp.proof.prove import ConfigurationProof
from planner.milp.proof.separable import SeparableRows
from planner.milp.search import pick, relist
from planner.milp.search.descent import UNFIT_NS, Answer
from planner.milp.search.state import ConfigurationState, SearchState

_FILTERS = 2  # of what the program is written over


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
            left += [ns for ns in state.left if ns < state.limit]
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
        while self.heap and self.heap[0][0] <= self.state.limit - 1 and not self._enough():
            self.now, number = heapq.heappop(self.heap)
            if self.every[number] not in self.done:
                self.examine(self.every[number])
            self.now = UNFIT_NS
        self.bring_near()  # what joined the queue meanwhile
        for least, number in self.heap:
            if self.every[number] not in self.done:
                self.state.leave(least)
        self.heap.clear()

    def examine(self, shape: Configuration) -> None:
        """Takes a first look at a configuration, and adds the variants that it calls for."""
        self.add(shape)
        tight = self.state.examine(shape)
        relist.first_of(self.state, shape)
        if not shape.listed:  # an order listed anew is for its own costs
            variants = pick.thriftier(self.state.instance, shape) if tight else self.state.faster(shape)
            for variant in list(variants):
                self.add(variant)
        self.done.add(shape)

    def leave(self, configurations: Sequence[Configuration]) -> None:
        """Leaves everything that was not looked into with its bound, as where the search was stopped.

        Args: `configurations` are all of the question, whether they waited or not.
        """
        for shape in configurations:
            self.add(shape)
        self.state.left = []
        for shape in self.every:
            if shape not in self.done:
                self.state.leave(self.state.promise_ns(shape))

    def _enough(self) -> bool:
        if not self.state.effort.proves and self.state.limit < UNFIT_NS:
            return True
        spent = self.state.instance.meter.spent_ns
        return self.state.limit < UNFIT_NS and spent > limits.LOOKS * self.state.effort.work_ns


@limits.seldom_collected()
def search(
    instance: Instance, effort: Effort, *, below: int = UNFIT_NS, rows: Rows | None = None
) -> SearchState:
    """Searches all configurations of a planning instance, and proves the best plan as far as the effort goes.

    Args: plans that take `below` nanoseconds or more are not looked for; `rows` of the same orders give a start.
    Returns: the state of the search with the best answer, if there is one, and its bound.
    Raises: Infeasible where the pins leave no configuration; KeyboardInterrupt where Ctrl-C came before any plan, and none fits soon.
    """
    kept = instance.kept.rows if rows is None else rows
    state = SearchState(instance=instance, effort=effort, below=below, rows=kept)
    waiting, watch = Waiting(state=state), effort.watch
    configurations: list[Configuration] = []
    state.follow = lambda: watch.at(lambda: waiting.progress(len(configurations)))
    try:
        watch.begin()
        configurations = pick.ranked(instance)
        if not configurations:
            raise Infeasible(infeasible.no_shape(instance, lambda asked: bool(pick.ranked(asked))))
        _run(state, waiting, configurations)
        watch.end()
    except BaseException as error:
        # A library that Ctrl-C meets in the middle of a call may turn it into an error of its own.
        if not (watch.stopped or isinstance(error, KeyboardInterrupt)):
            raise
        watch.end()
        state.stopped = True
        if state.best is not None:
            waiting.leave(configurations)
        elif below < UNFIT_NS or watch.answered or not pick.take_soonest(state):
            raise KeyboardInterrupt from error
    finally:
        watch.end()
    watch.answered = watch.answered or state.best is not None
    state.queue = state.queue or waiting.every
    state.considered = len(state.queue)
    return state


def _run(state: SearchState, waiting: Waiting, configurations: list[Configuration]) -> None:
    """Searches in stages; after each of them the best plan so far could be returned."""
    if state.below == UNFIT_NS:
        pick.pick(state, configurations)
        pick.take_trivial(state, set(configurations))
        relist.spare(state)
        if not _soon_proved(state, waiting, configurations):
            pick.settle(state)
    _solve_winner(state, waiting)
    best = _grow(state, waiting)
    state.stage = "settled"
    for shape in configurations:
        waiting.add(shape)
    waiting.work_through()
    if state.limit == UNFIT_NS:
        relist.nearest(state, waiting.every)
    if state.limit < best:
        _grow(state, waiting)
        waiting.work_through()
    if state.effort.proves:
        state.prove()
        solve_program(state)
        state.stage = "proved"


def _soon_proved(state: SearchState, waiting: Waiting, configurations: Sequence[Configuration]) -> bool:
    """Returns whether little work proves that nothing beats the first answers: then annealing cannot either.

    Args: more than a few of `configurations` that may beat the answers are left for later, and untouched.
    """
    left = (shape for shape in configurations if state.promise_ns(shape) <= state.limit - 1)
    few = list(islice(left, limits.SOON_PROVED + 1))
    if state.best is None or len(few) > limits.SOON_PROVED:
        return False
    for shape in few:
        waiting.add(shape)
    meter = state.instance.meter
    most = meter.spent_ns + limits.ALONE_NS
    while waiting.heap and waiting.heap[0][0] <= state.limit - 1:
        if meter.spent_ns > most:
            return False
        waiting.examine(waiting.every[heapq.heappop(waiting.heap)[1]])
    return state.prove_alone(state.open)


def _solve_winner(state: SearchState, waiting: Waiting) -> None:
    """Solves the configuration of the best plan alone: what it leaves open is hardly ever the answer."""
    solved: set[Configuration] = set()
    while state.best is not None and state.best.shape not in solved and not state.best.shape.chosen:
        winner = state.best
        solved.add(winner.shape)
        if winner.shape not in waiting.done:
            waiting.examine(winner.shape)
        state.prove_alone([winner])


def _grow(state: SearchState, waiting: Waiting) -> int:
    """Reschedules the best plans; the new orders wait for their proof. Returns the nanoseconds of the best plan then."""
    entered = relist.grow(state)
    state.listed += len(entered)
    for shape in entered:
        waiting.add(shape)
    return state.limit


def solve_program(state: SearchState) -> None:
    """Solves the mixed-integer program over the winner and whatever is still open, where it is small enough to write.

    Args: `state` is that of a search whose proofs are done; its bounds and its best plan may get better.
    """
    if state.best is None:
        return
    if state.best.closing is None:
        spans = state.instance.windows(state.best.problem)
        state.best.closing = ConfigurationProof(problem=state.best.problem.talking, spans=spans)
        state.best.closing.look(state.best.answer, state.limit)
    others = [tried for tried in state.open if tried is not state.best and tried.bound_ns < state.limit]
    most = limits.PROGRAM_ARCS if others else limits.PROVED_ARCS
    given: list[tuple[ConfigurationState, formulation.OpenConfiguration | None]] = []
    for tried in [state.best, *others]:
        given.append((tried, _open_part(state, tried, limits.FILTERED_ARCS)))
        part = given[-1][1]
        most -= sum(int(a.sum()) for a in part.box.alive) if part is not None else 0
        if most < 0:
            return
    parts = [part for _, part in given if part is not None]
    if not parts:
        return
    work_ns = limits.PROGRAM * state.effort.work_ns
    done = formulation.solve(parts, state.limit, nodes=state.effort.program_nodes, work_ns=work_ns)
    state.program = done
    if done.part >= 0:
        state.take(state.tried[parts[done.part].box.problem.shape], Answer(cut=done.cut, ns=done.ns))
    least = int(done.bound_ns * (1 - formulation.TOLERANCE))
    for tried, part in given:
        if part is not None:
            tried.bound_ns = max(tried.bound_ns, min(least, state.limit))


def _open_part(
    state: SearchState, tried: ConfigurationState, most_arcs: int
) -> formulation.OpenConfiguration | None:
    """Returns the cuts that the rows do not refute; ties with the best answer stay.

    Args: a box of more than `most_arcs` is not filtered further: it is too large for the program anyway.
    """
    if tried.closing is None or tried.closing.root is None or tried.problem.flagged:
        return None
    pool, most = tried.closing.record.pool, state.limit + ROUNDING
    rows = pool.weights.part(pool.active())
    box: Box | None = tried.closing.root
    if box is not None:
        spans = SeparableRows(box.problem).narrowed(rows, most, box.low, box.high)
        box = None if spans is None else box.narrowed(*spans)
    for _ in range(_FILTERS):
        if box is not None and sum(int(a.sum()) for a in box.alive) <= most_arcs:
            box = box.filtered(rows, most)
    tried.bound_ns = state.limit if box is None else tried.bound_ns
    return None if box is None else formulation.OpenConfiguration(box=box, rows=rows, bound_ns=tried.bound_ns)
