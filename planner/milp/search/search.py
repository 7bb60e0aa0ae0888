"""The course of a search: which configurations are looked into, and when.

First answers come from the most promising configurations and from the trivial plans, from variants with less memory
where those do not fit, and from orders listed anew for the best. Then configurations are taken up as their totals
bound them, the lowest first. What is left when the work allowed for that is done is bounded by the next one. At last
the mixed-integer program states the proof over whatever is still open.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from planner import limits
from planner.configurations import Configuration
from planner.errors import Infeasible
from planner.limits import Effort
from planner.milp import formulation, infeasible
from planner.milp.instance import Instance
from planner.milp.problems import Rows
from planner.milp.search import pick, relist
from planner.milp.search.candidates import Candidates, short_bytes
from planner.milp.search.relist import Waiting
from planner.milp.search.state import SearchState
from planner.proof import UNFIT_NS, Answer, ConfigurationProof, ConfigurationState, descend, fits, starts


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
    configurations = Candidates(instance)
    state.follow = lambda: watch.at(lambda: waiting.progress(len(configurations)))
    try:
        watch.begin()
        if not configurations:
            raise Infeasible(infeasible.no_shape(instance, lambda asked: bool(Candidates(asked))))
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
    unlisted = 0 if state.queue else configurations.unlisted
    state.queue = state.queue or waiting.every
    state.considered = len(state.queue) + unlisted
    return state


def _run(state: SearchState, waiting: Waiting, configurations: Candidates) -> None:
    """Searches in stages; after each of them the best plan so far could be returned."""
    if state.below == UNFIT_NS:
        pick.pick(state, configurations)
        pick.take_trivial(state, configurations)
        tight = _spare(state, configurations)
        if not _soon_proved(state, waiting, configurations):
            pick.settle(state)
            if tight:
                _solve_uses(state, waiting, configurations)
    _solve_winner(state, waiting)
    best = _grow(state, waiting)
    state.stage = "settled"
    for shape in configurations.below(state.limit):
        waiting.add(shape)
    waiting.work_through()
    if state.limit == UNFIT_NS:
        relist.nearest(state, waiting.every)
    if state.limit < best:
        _grow(state, waiting)
        waiting.work_through()
    if state.effort.proves:
        prove(state)
        solve_program(state)
        state.stage = "proved"


def _spare(state: SearchState, configurations: Candidates) -> bool:
    """Answers variants with less memory of configurations whose even cuts are faster than any answer, and do not fit.

    The first that fits is enough of those that recompute, and of those that only share.

    Args: `state` has the first answers; `configurations` are all of the question, the most promising first.
    Returns: whether there are such configurations.
    """
    meter, tight = state.instance.meter, False
    most = meter.spent_ns + limits.SPARED_WORK * state.effort.work_ns
    for shape in _tight(state, configurations) if state.instance.pins.stages is None else ():
        done, tight = set[bool](), True
        for other in pick.thriftier(state.instance, shape):
            again, wanted = other.sparing or other.recompute, _may_win(state, other) and meter.spent_ns < most
            if wanted and again not in done and (tried := state.look(other)):
                state.answer(tried, work_ns=limits.PICK_NS)
                done |= {again} if tried.answer is not None else set()
    return tight


def _tight(state: SearchState, configurations: Candidates) -> Iterator[Configuration]:
    """Yields configurations that do not fit and may be faster: those looked into, by what their even cuts take.

    Where there are some, all families come for a few ways to use the devices: one that never fits would crowd out the
    others.
    """
    known = [tried for tried in state.tried.values() if tried.answer is None]
    ranked = [shape for _, shape in sorted((pick.even_ns(state, tried), tried.shape) for tried in known)]
    met = [shape for shape in ranked[: limits.SPARED] if _is_tight(state, shape)]
    yield from met
    uses: dict[tuple[object, ...], dict[str, Configuration]] = {}
    for shape in [*ranked, *configurations.below(state.limit)] if met else ():
        use = *_use(shape), shape.micro
        if len(uses) < limits.USES or use in uses:
            uses.setdefault(use, {}).setdefault(shape.family, shape)
    every = dict.fromkeys(shape for families in uses.values() for shape in families.values())
    yield from (shape for shape in every if shape not in met and _is_tight(state, shape))


def _solve_uses(state: SearchState, waiting: Waiting, configurations: Candidates) -> None:
    """Looks into all variants of the ways to use the devices that came out best, as if each way were pinned.

    Where memory binds, few even cuts fit: a proof meets the cuts that do.

    Args: `state` has answers; `configurations` are all of the question.
    """
    met = sorted((tried.answer.ns, shape) for shape, tried in state.tried.items() if tried.answer is not None)
    for use in list(dict.fromkeys(_use(shape) for _, shape in met))[: limits.SOLVED_USES]:
        most = state.instance.meter.spent_ns + limits.SOLVED_WORK * state.effort.work_ns
        own = [shape for shape in configurations.below(state.limit) if _use(shape) == use]
        for each in (each for shape in own for each in (shape, *pick.thriftier(state.instance, shape))):
            if each not in waiting.done and _may_win(state, each) and state.instance.meter.spent_ns < most:
                waiting.examine(each)
        left = [tried for tried in state.open if _use(tried.shape) == use]
        state.take_further(left, state.effort.nodes, most)


def _may_win(state: SearchState, shape: Configuration) -> bool:
    """Returns whether a configuration has room, and may be faster than the best plan."""
    return state.least_ns(shape) <= state.limit - 1 and short_bytes(state.instance, shape) <= 0


def _use(shape: Configuration) -> tuple[object, ...]:
    """Returns how a configuration uses the devices."""
    return shape.data, shape.workers, shape.grid, shape.mesh, shape.axes


def _is_tight(state: SearchState, shape: Configuration) -> bool:
    """Returns whether no even cut of a configuration fits, of which one may be faster than the best plan."""
    tried = state.look(shape) if state.least_ns(shape) <= state.limit - 1 else None
    near = tried is not None and pick.even_ns(state, tried) <= limits.HOPE * state.limit
    return tried is not None and near and not fits(tried.problem, starts(tried.problem)).any()


def _soon_proved(state: SearchState, waiting: Waiting, configurations: Candidates) -> bool:
    """Returns whether little work proves that nothing beats the first answers: then annealing cannot either.

    Args: `state` and `waiting` take up the proof where it is whole; otherwise they stay as they are, and so does the
      meter. More than a few of `configurations` that may beat the answers are not tried.
    """
    left = (x for x in configurations.below(state.limit) if state.promise_ns(x) <= state.limit - 1)
    few = list(islice(left, limits.SOON_PROVED + 1))
    if state.best is None or len(few) > limits.SOON_PROVED:
        return False
    kept, meter = state.instance.kept, state.instance.meter
    bounds, begun = dict(kept.bounds), meter.spent_ns
    trial = _copied(state)
    tried = Waiting(state=trial)
    for shape in few:
        tried.add(shape)
    while tried.heap and tried.heap[0][0] <= trial.limit - 1 and meter.spent_ns < begun + limits.ALONE_NS:
        tried.examine(tried.every[heapq.heappop(tried.heap)[1]])
    if (tried.heap and tried.heap[0][0] <= trial.limit - 1) or not trial.prove_alone(trial.open):
        meter.spent_ns = begun
        kept.bounds.clear()
        kept.bounds.update(bounds)
        return False
    state.tried, state.best, state.open = trial.tried, trial.best, trial.open
    state.near = trial.near
    state.rows.update(trial.rows)
    waiting.every, waiting.known, waiting.done, waiting.heap = (
        tried.every,
        tried.known,
        tried.done,
        tried.heap,
    )
    return True


def _copied(state: SearchState) -> SearchState:
    """Returns a state that knows as much; what the copy learns is its own."""
    tried = {shape: replace(each) for shape, each in state.tried.items()}
    best = None if state.best is None else tried[state.best.shape]
    return replace(state, tried=tried, best=best, open=[], near=dict(state.near), rows=dict(state.rows))


def _solve_winner(state: SearchState, waiting: Waiting) -> None:
    """Solves the configuration of the best plan alone: what it leaves open is hardly ever the answer."""
    while state.best is not None and state.best.shape not in waiting.done and not state.best.shape.chosen:
        winner = state.best
        waiting.examine(winner.shape)
        state.prove_alone([winner])


def _grow(state: SearchState, waiting: Waiting) -> int:
    """Reschedules the best plans; the new orders wait for their proof. Returns the nanoseconds of the best plan then."""
    entered = relist.grow(state)
    state.listed += len(entered)
    for shape in entered:
        waiting.add(shape)
    return state.limit


def prove(state: SearchState) -> None:
    """Continues open proofs. Silent cuts, in which some neighbours do not talk, come before the rest of the flags."""
    _polish(state)
    meter, most, nodes = state.instance.meter, state.effort.work_ns, state.effort.nodes
    talking = [tried for tried in state.open if not tried.problem.silent]
    flagged = [tried for tried in talking if tried.problem.flagged]
    if flagged:  # what is known without flags refutes most of what has them
        plain, least = [x for x in talking if not x.problem.flagged], min(x.bound_ns for x in flagged)
        state.take_further(plain, nodes, meter.spent_ns + limits.PLAIN * (most - meter.spent_ns), least)
    state.take_further(talking, nodes, most)
    small = state.instance.layers <= limits.SMALL_LAYERS  # else silent cuts have a share of the work
    _prove_silent(state, most if small else meter.spent_ns + limits.SILENT * most)
    state.open = [tried for tried in state.open if state.is_left(tried)]
    flagged = [x for x in state.open if x.problem.flagged and (small or not x.problem.silent)]
    state.take_further(flagged, limits.CHOICES * nodes, most)
    state.open = [tried for tried in state.open if state.is_left(tried)]


def _polish(state: SearchState) -> None:
    """Runs descents from the best cuts of the first looks: a better answer refutes more than any bound."""
    met = [(tried.answer.ns, tried.shape, tried) for tried in state.open if tried.answer and tried.closing]
    for _, _, tried in sorted(met, key=lambda entry: entry[:2])[: limits.POLISHED]:
        spans = state.instance.windows(tried.problem)
        if spans is not None and tried.answer is not None:
            state.take(tried, descend(tried.problem, *spans, tried.answer.cut))


def _prove_silent(state: SearchState, most: float) -> None:
    """Proves cuts in which some neighbours do not talk, until the meter shows `most` or no bound moves any more."""
    looked: list[ConfigurationState] = []
    unmoved, most_unmoved = 0, limits.UNMOVED * state.effort.work_ns / limits.WORK_NS
    for tried in state.silent():
        if state.instance.meter.spent_ns < most and unmoved < most_unmoved:
            unmoved = 0 if state.look_closer(tried) else unmoved + 1
            looked.append(tried)
    state.take_further(looked, state.effort.nodes, most)


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
        left = tried.left(state.limit)
        part = left and formulation.OpenConfiguration(box=left[0], rows=left[1], bound_ns=tried.bound_ns)
        given.append((tried, part))
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
