"""The first answers of a search, before anything is proved: configurations in order of promise, cuts by descent.

Even cuts of the most promising configurations are simulated, sharded variants beside plain ones. The best of them are
descended from (`pick`). Then fewer and fewer of the best answers are annealed, for longer and longer (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import numpy as np

from planner import limits
from planner.configurations import Configuration
from planner.milp import explain
from planner.milp.instance import Instance
from planner.milp.search.candidates import PLAINEST, Candidates, guess_ns, plainest, short_bytes
from planner.milp.search.state import SearchState
from planner.milp.search.totals import TotalsBound
from planner.proof import (
    ROUNDING,
    UNFIT_NS,
    Answer,
    ConfigurationProof,
    ConfigurationState,
    judge,
    silent_parts,
    starts,
)


def pick(state: SearchState, configurations: Candidates) -> None:
    """Answers the configurations whose even cuts came out best, and the most promising one of each family.

    The even cuts of the most promising configurations are simulated before, cheap orders first where guesses are alike.

    Args: `state` takes the answers; `configurations` are all of the question, the most promising first.
    """
    promising = _promising(state, configurations)
    firsts: dict[str, Configuration] = {}
    for shape in promising:
        firsts.setdefault(shape.family, shape)
    far = limits.FAR * min(guess_ns(state.floors, shape) for shape in promising)
    near = [shape for shape in promising[: limits.EVEN_CUTS] if guess_ns(state.floors, shape) <= far]
    ahead = dict.fromkeys([*promising[: limits.POLISHED], *firsts.values(), *near])
    meter, most = state.instance.meter, limits.GLANCES * state.effort.work_ns
    looked = [state.look(shape) for shape in ahead if meter.spent_ns < most]
    known = [tried for tried in looked if tried is not None]
    if state.instance.pins.stages is None:
        known = sorted(known, key=lambda tried: (even_ns(state, tried), tried.shape))
    chosen = [
        *known[: limits.FIRST_ANSWERS],
        *(tried for tried in known if firsts[tried.shape.family] == tried.shape),
    ]
    every = {tried.shape: tried for tried in chosen}.values()
    for tried in sorted(every, key=lambda tried: tried.shape.chunks * (tried.shape.workers == 1)):
        hopeless = state.instance.pins.stages is None and _hopeless(state, tried)
        if state.instance.meter.spent_ns < state.effort.work_ns / 3 and not hopeless:
            state.answer(tried, work_ns=limits.PICK_NS)


def _promising(state: SearchState, configurations: Candidates) -> list[Configuration]:
    """Returns configurations, sharded variants beside plain ones, by classes of their guess and the cheapest first."""
    bound = TotalsBound(state.instance)
    found = [(guess_ns(bound, shape), shape) for shape in configurations.first(limits.SHARED_GUESSES)]
    for guess, shape in list(found):
        variants = [replace(shape, shard=True)] if state.instance.may_share(shape) else []
        for shared in (*variants, *state.instance.by_element(shape)):
            if (other := guess_ns(bound, shared)) < guess:
                found.append((other, shared))
    least = min(guess for guess, _ in found)
    step = np.log1p(limits.ALIKE_GUESSES)

    def rank(entry: tuple[float, Configuration]) -> tuple[int, int, float, int, Configuration]:
        guess, shape = entry
        group = int(np.log(max(guess, 1.0) / max(least, 1.0)) / step)
        return group, shape.stages * shape.micros, guess, PLAINEST.index(shape.family), shape

    return [shape for _, shape in sorted(found, key=rank)]


def settle(state: SearchState) -> None:
    """Anneals answers, fewer and fewer of the best, and for longer and longer.

    Args: `state` has the first answers.
    """
    for kept, times, slower in limits.SETTLING:
        most = (1 + slower) * state.limit
        met = [t for t in state.tried.values() if t.answer is not None and t.answer.ns <= most]
        met.sort(key=lambda tried: (tried.answer.ns if tried.answer else UNFIT_NS, tried.shape))
        before = state.limit
        for tried in met[:kept]:
            state.settle(tried, times)
        state.rugged = state.limit < before * (1 - limits.RUGGED)
    times = 2 * limits.SETTLING[-1][1]
    while state.rugged and times <= limits.LONGEST and state.best is not None:
        before = state.limit
        state.settle(state.best, times)
        state.rugged, times = state.limit < before * (1 - limits.RUGGED), 2 * times


def bare_ns(state: SearchState, shape: Configuration) -> float:
    """Returns a lower bound of a configuration as if sums and updates took nothing; no more than what is to be beaten.

    It holds for all variants that recompute or share, and is worked out once for them: where some neighbours may not talk,
    and such boundaries are few. The cuts of each are bounded apart.
    """
    least, instance, plain, goal = state.least_ns(shape), state.instance, plainest(shape), state.limit
    known, asked = instance.kept.bare.get(plain, (0.0, 0))
    if (
        goal == UNFIT_NS
        or asked >= goal
        or least > goal - 1
        or plain.listed
        or short_bytes(instance, shape) > 0
    ):
        return least
    problem = state.tried[plain].problem if plain in state.tried else instance.problem(plain)
    spans = None if problem is None else instance.windows(problem)
    if problem is None or spans is None or problem.fixed is not None or problem.chained:
        instance.kept.bare[plain] = known, UNFIT_NS  # nothing to bound, whatever is to be beaten
        return least
    problem = replace(problem, bare=True)
    parts = list(islice(silent_parts(problem, *spans), limits.BARE_PARTS + 1))
    bound = float(goal if len(parts) <= limits.BARE_PARTS else 0)
    for part, narrow in [(problem.talking, spans), *parts]:
        if bound > known:
            key = part.order, shape.update, part.silent or 0
            proof = ConfigurationProof(problem=part, spans=narrow, rows=state.rows.get(key, []))
            bound = min(bound, float(proof.glance(int(bound))))
            state.rows[key] = proof.rows
    instance.kept.bare[plain] = max(known, bound), goal
    return max(least, bound)


def glance(state: SearchState, shape: Configuration, goal: int, rounds: int) -> float:
    """Returns a lower bound of a configuration by time alone: at most `goal`, unless more is known already.

    Args: at most `rounds` mixtures of rows are tried, and none where a configuration includes more than a cut.
    """
    least, instance = state.least_ns(shape), state.instance
    if least <= goal - 1:
        least = bare_ns(state, shape)
    tried = state.look(shape) if least <= goal - 1 and short_bytes(instance, shape) <= 0 else None
    spans = None if tried is None else instance.windows(tried.problem)
    if tried is None or spans is None or tried.problem.flagged or tried.problem.fixed is not None:
        return least
    problem, staged = tried.problem.talking, state.staged_ns(tried)
    totals = UNFIT_NS if tried.problem.chained else state.floors.summed_ns(shape, talking=False)
    bound, silent = max(state.kept_ns(tried), staged), max(totals, staged)
    if bound < (goal := min(goal, int(silent))):  # more than the least of both kinds of cuts says nothing
        key, rows = (problem.order, shape.update, problem.silent or 0), state.rows
        proof = ConfigurationProof(problem=problem, spans=spans, rounds=rounds, rows=rows.get(key, []))
        bound = max(bound, float(proof.glance(goal)))
        rows[key] = proof.rows
        state.take(tried, proof.record.answer)
        if tried.problem.roomless:
            instance.kept.bounds[shape] = bound
    state.near[shape] = bound = max(least, min(bound, silent))
    return bound


def _hopeless(state: SearchState, tried: ConfigurationState) -> bool:
    """Returns whether a configuration is far from the best answer.

    Also returns True for a lone worker with more chunks that is no better at first than fewer chunks came to.
    """
    ns, own = even_ns(state, tried), tried.shape
    fewer = [
        other.answer.ns
        for shape, other in state.tried.items()
        if other.answer is not None
        and shape.chunks < own.chunks
        and (shape.data, shape.workers, shape.micro) == (own.data, 1, own.micro)
    ]
    return ns > limits.HOPE * state.limit or ns >= min(fewer, default=UNFIT_NS)


def even_ns(state: SearchState, tried: ConfigurationState) -> int:
    """Returns the nanoseconds of the best even cut of a configuration, whether it fits or not."""
    known = state.instance.kept.even_ns
    if tried.shape not in known or not tried.problem.roomless:
        known[tried.shape] = int(tried.problem.times(starts(tried.problem), 0).min())
    return known[tried.shape]


def take_trivial(state: SearchState, allowed: Candidates) -> None:
    """Takes the trivial plans as answers too: none of them beats the plan, however little was looked into.

    Args: `allowed` are the configurations of the question, each of which may have replicas that share something.
    """
    if state.instance.pins.stages is not None:
        return
    for _, chosen in explain.trivial(state.instance):
        for shape in (each for each in chosen if each in allowed):
            shared = (replace(shape, shard=True),) if state.instance.may_share(shape) else ()
            for each in (shape, *shared, *state.instance.by_element(shape)):
                tried = state.look(each) if state.least_ns(each) <= limits.HOPE * state.limit else None
                if tried is not None:
                    cut = explain.equal_cut(tried.problem)
                    ns = int(judge(tried.problem, cut[None, :])[0])
                    state.take(tried, None if ns == UNFIT_NS else Answer(cut=cut, ns=ns))


def thriftier(instance: Instance, shape: Configuration) -> Iterator[Configuration]:
    """Yields variants of a configuration that take less memory.

    Args: `shape`; only stages that must do so recompute, unless that would change the order.
    Yields: variants that recompute, shard the optimizer, or both.
    """
    pinned, now = instance.pins, shape.recompute or shape.sparing
    recompute = (True,) if now else (False,) if pinned.recompute is False else (False, True)
    alone = shape.shard or shape.held or shape.mesh or pinned.shard is False
    shard = (shape.shard,) if alone else (False, True)
    for again, sharded in product(recompute, shard):
        changed = (again, sharded) != (now, shape.shard)
        if changed and (not sharded or (shape.holders > 1 and not instance.joint)):
            some = again and not shape.recompute and not instance.at_use(replace(shape, shard=sharded))
            yield replace(shape, recompute=again and not some, sparing=some, shard=sharded)
    for again in recompute:
        some = again and not shape.recompute
        plain = replace(shape, shard=False, recompute=again and not some, sparing=some)
        yield from instance.by_element(plain)


def take_soonest(state: SearchState) -> bool:
    """Takes the best of a few plans, for a search that was ended before its first answer; nothing is ranked for them.

    Args: `state` takes the answer and its configurations, all bounded by the least that a worker computes.
    Returns: whether one of them fits.
    """
    instance, bound = state.instance, state.floors
    every = list(Candidates(instance))
    few = every[:: max(1, len(every) // limits.SOON)]
    if instance.pins.stages is None:
        known = set(every)
        few += [shape for _, chosen in explain.trivial(instance) for shape in chosen[-1:] if shape in known]
    small = [shape for shape in few if shape.stages * shape.micros <= limits.SOON_ACTIONS]
    for shape in sorted(small, key=lambda each: (guess_ns(bound, each), each))[: limits.FIRST_ANSWERS]:
        for each in (shape, *thriftier(instance, shape)):
            if _even_answered(state, each):
                break
    for shape in sorted(few, key=lambda each: (each.stages * each.micros, each)):
        for each in (shape, *thriftier(instance, shape)):
            if state.best is None and (tried := state.look(each)) is not None:
                state.answer(tried, work_ns=limits.PICK_NS)
    least = int(min((bound.load_ns(shape) for shape in every), default=0.0) - ROUNDING)
    state.left, state.left_listed = [least] * (len(every) - len(state.tried)), []
    state.queue = every
    return state.best is not None


def _even_answered(state: SearchState, shape: Configuration) -> bool:
    """Returns whether an even cut of a configuration fits, and takes the best of them as an answer."""
    fits = short_bytes(state.instance, shape) <= 0 and state.floors.free_ns(shape) < state.limit
    if not fits or (tried := state.look(shape)) is None:
        return False
    for cut in starts(tried.problem):
        ns = int(judge(tried.problem, cut[None, :])[0])
        state.take(tried, None if ns == UNFIT_NS else Answer(cut=cut, ns=ns))
    return tried.answer is not None
