"""Why a plan was chosen, as data for its certificate: counts, the trivial plans and the runners-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from planner.arrays import IntArray
from planner.configurations import (
    Configuration,
    Pins,
    shapes,
    without_group,
)
from planner.cuts import KINDS, CutProblem
from planner.milp.instance import Instance
from planner.plan import MOST_NEAR, PlannedConfiguration, Rival, RivalKind, SearchCounts
from planner.proof import UNFIT_NS, Answer, judge
from planner.schedule import Action, Kind

_RUNNERS = 4
_DEEPEST_TRIVIAL = 16
SYNC, STEP = KINDS.index(Kind.SYNC), KINDS.index(Kind.STEP)


class Answered(Protocol):
    """A shape with the best answer that was found for it."""

    shape: Configuration
    problem: CutProblem
    answer: Answer | None


def counts(
    configurations: int, *, left: int, taken_up: int, unfinished: int, rescheduled: int
) -> SearchCounts:
    """Returns what became of the configurations.

    Args: those `left` were not looked into, and their bounds do not rule them out; of those `taken_up` some are
    `unfinished`.
    """
    solved = max(0, min(taken_up, configurations) - unfinished)
    return SearchCounts(
        configurations=configurations,
        solved=solved,
        ruled_out=max(0, configurations - solved - unfinished - left),
        open=unfinished + left,
        rescheduled=rescheduled,
    )


def rivals(space: Instance, best: CutProblem, looked: Sequence[Answered]) -> Iterator[Rival]:
    """Yields the plans that were priced beside the best one, each configuration and step once.

    Args: `looked` are the configurations that the search took up.
    """
    found = [
        *(_best(space, kind, shapes) for kind, shapes in trivial(space)),
        *_others(best, looked),
    ]
    seen = set()
    for rival in found:
        if (key := (rival.configuration, rival.step_ns)) not in seen or rival.step_ns is None:
            seen.add(key)
            yield rival


def _others(best: CutProblem, looked: Sequence[Answered]) -> Iterator[Rival]:
    """Yields the best plan of each other family, and the best of the configurations that are left."""
    answered = sorted(
        (each for each in looked if each.answer is not None),
        key=lambda each: (each.answer.ns if each.answer else UNFIT_NS, each.shape),
    )
    ways: dict[PlannedConfiguration, Answered] = {}
    for each in answered:
        ways.setdefault(configuration_of(each.shape).model_copy(update={"rescheduled": False}), each)
    families: dict[str, Answered] = {}
    for each in answered:
        if each.shape.family != best.shape.family:
            families.setdefault(each.shape.family, each)
    first = list(families.values())[:_RUNNERS]
    yield from (priced("family", each) for each in first)
    own = configuration_of(best.shape).model_copy(update={"rescheduled": False})
    near = [each for way, each in ways.items() if way != own and not any(each is one for one in first)]
    yield from (priced("near", each) for each in near[:MOST_NEAR])


def priced(kind: RivalKind, found: Answered) -> Rival:
    """Returns a configuration with the step of its best plan and what that step is made of."""
    assert found.answer is not None
    return _priced(kind, found.problem, found.answer)


def _priced(kind: RivalKind, problem: CutProblem, answer: Answer) -> Rival:
    parts, step = parts_ns(problem, answer), max(answer.ns, 1)
    share = {name: round(max(0.0, ns / step), 6) for name, ns in parts.items()}
    return Rival(
        kind=kind,
        configuration=configuration_of(problem.shape),
        step_ns=answer.ns,
        idle=share["bubble"],
        sums=share["sums"],
        messages=share["messages"],
        recomputing=share["recomputing"],
        peak_bytes=int(problem.memory(answer.cut[None, :])[0].max()),
    )


def configuration_of(shape: Configuration) -> PlannedConfiguration:
    """Returns a configuration of the search as plans and people have it."""
    return PlannedConfiguration(
        family=shape.family,
        data=shape.data,
        pipeline=shape.workers,
        pairs=shape.pairs,
        chunks=shape.chunks,
        micro=shape.micro,
        micros=shape.micros,
        grid=shape.grid,
        then=shape.then,
        then_from=shape.then_from,
        whole_from=shape.whole_from,
        shared=shape.shared,
        mesh=shape.mesh,
        recompute="all" if shape.recompute else "where_needed" if shape.sparing else "none",
        recomputed=shape.chosen,
        shard=shape.shard,
        held=shape.held,
        ranks=shape.ranks,
        innermost=shape.axes[-2] if shape.data > 1 and shape.workers > 1 else None,
        mirrored=shape.mirrored,
        rescheduled=bool(shape.listed),
    )


def parts_ns(posed: CutProblem, answer: Answer) -> dict[str, float]:
    """What a step is made of: the work of the busiest worker, what it waits for, and the rest.

    It waits for sums and messages of the critical path, as far as they do not overlap with its work.
    """
    (row, ns), spans = posed.critical(answer.cut), posed.durations(answer.cut)
    table = row.kinds * spans.kinds[0] / row.steps
    busiest = max(
        (_work(order, spans.kinds[0]) for order in posed.schedule.orders), key=lambda w: sum(w.values())
    )
    hops = float(row.hops.ravel()[spans.cells] @ spans.hop_ns[0]) / row.steps
    idle = max(0.0, ns - sum(busiest.values()))
    sums = min(float(table[SYNC].sum()), idle)
    messages = min(hops, idle - sums)
    return {**busiest, "bubble": idle - sums - messages, "sums": sums, "messages": messages}


def _work(order: Sequence[Action], took: IntArray) -> dict[str, int]:
    found = {"computing": 0, "recomputing": 0, "updating": 0}
    names = {Kind.R: "recomputing", Kind.STEP: "updating"}
    for action in order:
        if action.kind is not Kind.SYNC:
            found[names.get(action.kind, "computing")] += int(took[KINDS.index(action.kind), action.stage])
    return found


def trivial(space: Instance) -> list[tuple[RivalKind, list[Configuration]]]:
    """What one would do without a planner: shapes by name, to be cut into stages of equally many layers."""
    free = Pins(schedules=("1f1b",), spatial=1, recompute=False, shard=False, update=space.pins.update)
    free = replace(free, devices=space.pins.devices)
    wide = _shapes(space, replace(free, pipeline=1))
    most = max((shape.data for shape in wide), default=1)
    shared = _shapes(space, replace(free, pipeline=1, shard=None, held="parameters", recompute=None))
    deep = [x for x in _shapes(space, free) if 1 < x.workers <= _DEEPEST_TRIVIAL]
    used = max((x.devices for x in deep), default=0)
    cut = [
        shape
        for shape in _shapes(space, replace(free, spatial=None, pipeline=1))
        if shape.grid and not (shape.then or shape.shared)
    ]
    widest = max((shape.devices for shape in cut), default=1)
    found: list[tuple[RivalKind, list[Configuration]]] = [
        ("data_parallel", [shape for shape in wide if shape.data == most]),
        ("equal_stages", [x for x in deep if x.devices == used]),
        ("one_device", _shapes(space, replace(free, pipeline=1, data=1))),
    ]
    if whole := [shape for shape in shared if shape.data == most]:
        found.insert(1, ("fsdp", whole))
    if cut:
        found.append(("spatial", [x for x in cut if x.devices == widest]))
    return found


def equal_cut(posed: CutProblem) -> IntArray:
    """Stages of equally many layers, as nearly as the boundaries allow."""
    places = np.flatnonzero(posed.allowed)
    goal = np.linspace(0, posed.layers, posed.stages + 1)
    at = abs(places[None, :] - goal[:, None]).argmin(1)
    for p in range(1, posed.stages):
        at[p] = min(max(at[p], at[p - 1] + 1), len(places) - 1 - posed.stages + p)
    cut: IntArray = places[at]
    return cut


def _shapes(space: Instance, pinned: Pins) -> list[Configuration]:
    facts = {"layers": space.layers, "batch": space.batch}
    splits = partial(without_group, space.splits, pinned)
    every = shapes(space.cluster, **facts, micros=space.micros(), pinned=pinned, splits=splits)
    return list(filter(space.permits, every))


def _best(space: Instance, kind: RivalKind, chosen: Sequence[Configuration]) -> Rival:
    found = []
    for shape in chosen:
        problem = space.problem(shape)
        if problem is not None:
            cut = equal_cut(problem)
            ns = int(judge(problem, cut[None, :])[0])
            found.append((ns, shape, problem, cut))
    least = min(found, key=lambda entry: (entry[0], entry[1]), default=None)
    if least is None:
        return Rival(kind=kind)
    ns, shape, problem, cut = least
    if ns == UNFIT_NS:
        short = [int((p.memory(c[None, :])[0] - p.available_bytes).max()) for _, _, p, c in found]
        return Rival(kind=kind, configuration=configuration_of(shape), missing_bytes=max(0, min(short)))
    return _priced(kind, problem, Answer(cut=cut, ns=ns))


@dataclass(frozen=True, kw_only=True)
class PricedPins:
    """What a plan takes whose every choice is pinned; without a step, it lacks `missing_bytes` on some device."""

    step_ns: int | None
    missing_bytes: int = 0


def price_pins(space: Instance, axes: tuple[str, ...]) -> PricedPins | None:
    """Returns what a training takes whose every choice, the cut too, is pinned; None where it cannot be had.

    Args: `axes` are in the order in which ranks are numbered, from the outermost; it counts where distances differ.
    """
    every = [shape for shape in _shapes(space, space.pins) if not shape.mirrored]
    for shape in [shape for shape in every if shape.axes == axes] or every:
        problem = space.problem(shape)
        cuts = None if problem is None else space.windows(problem)
        if problem is not None and cuts is not None:
            ns = int(judge(problem, cuts[0][None, :])[0])
            short = int((problem.memory(cuts[0][None, :])[0] - problem.available_bytes).max())
            return PricedPins(step_ns=None if ns == UNFIT_NS else ns, missing_bytes=max(0, short))
    return None
