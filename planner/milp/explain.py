"""Why this plan: what it was searched among, what the trivial plans and the runners-up lose, what no order beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from planner.arrays import IntArray
from planner.cost import shown
from planner.milp.configurations.configurations import (
    FREE_CHUNKS,
    MOST_ACTIONS,
    MOST_FORWARDS,
    SEARCHED,
    Configuration,
    shapes,
)
from planner.milp.configurations.spatial_choices import looked_at
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.stage_costs import KINDS
from planner.milp.instance import Instance
from planner.milp.pins import Pins
from planner.milp.search.descent import UNFIT_NS, Answer, judge
from planner.plan import Rival
from planner.schedule import FAMILIES, Action, Kind

_RUNNERS = 4
_DEEPEST_TRIVIAL = 16
SYNC, STEP = KINDS.index(Kind.SYNC), KINDS.index(Kind.STEP)


class Answered(Protocol):
    """A shape with the best answer that was found for it."""

    shape: Configuration
    problem: CutProblem
    answer: Answer | None


def scope(space: Instance, considered: int, bounded: int, left: int, listed: int) -> str:
    orders = f", and {listed} listed anew for the costs of the best plans" if listed else ""
    where = "" if space.boundaries.all() else ", each stage feeding the next"
    grids = sorted({choice.grid for micro in space.micros() for choice in space.splits(micro) if choice.grid})
    cut = (
        f"; samples whole or cut ({', '.join(map(shown, grids))}), {looked_at(space.layers)}" if grids else ""
    )
    return (
        f"{considered} shapes ({bounded} ruled out by bounds, {left} only bounded): {_families(space.pins)}, orders frozen as generated{orders}; cuts of the "
        f"layers in the order of the model{where}; whole nodes from the first on, up to 64 pipeline workers unless fixed; {_recomputation(space, listed > 0)}; "
        f"sharded optimizer state where that or time asks for it, of all stages alike; "
        f"replicas as slow as the slowest{cut}{_at_use(space)}"
    )


def _families(pins: Pins) -> str:
    names = ", ".join(pins.schedules)
    if not names:
        parts = f"overlap on one worker only, of at most {MOST_FORWARDS:,} forwards"
        alone = "one worker has one stage" if pins.out_of_order is False else parts
        names = f"all families with an order of their own ({alone})"
    several = any(isinstance(FAMILIES[name].chunks, int) for name in pins.schedules or SEARCHED)
    few = f", the {FREE_CHUNKS} least numbers of stages a worker where a family takes any"
    return f"{names}{few if several and pins.chunks is None else ''}, at most {MOST_ACTIONS:,} actions"


def _recomputation(space: Instance, listed: bool) -> str:
    if space.pins.recompute is not None:
        return "recomputation of every stage" if space.pins.recompute else "no recomputation"
    split = any(choice.grid for micro in space.micros() for choice in space.splits(micro))
    alone = "where each worker holds one" + (", of whole samples," if split else "")
    some = f"{alone} in as few of their first layers as do, else whole" if space.parts_recompute else "whole"
    anew = "; in an order listed anew of those that it was listed for" if listed else ""
    return f"recomputation where memory excludes a cut, of any stages, {some}{anew}"


def _at_use(space: Instance) -> str:
    shown = space.pins.update == "rolling" and space.pins.out_of_order is not False
    return (
        "; where updates come at use, parts of about equal work or equal bytes only, of which all recompute or none"
        if shown
        else ""
    )


def rivals(space: Instance, best: CutProblem, answer: Answer, looked: Sequence[Answered]) -> Iterator[Rival]:
    yield from (_best(space, name, shapes) for name, shapes in trivial(space))
    others: dict[str, Answered] = {}
    for found in sorted(looked, key=lambda x: (x.answer.ns if x.answer else UNFIT_NS, x.shape)):
        if found.answer is not None and found.shape.family != best.shape.family:
            others.setdefault(found.shape.family, found)
    for found in list(others.values())[:_RUNNERS]:
        assert found.answer is not None
        yield Rival(name=str(found.shape), step_ns=found.answer.ns, why=_why(found.problem, found.answer))


def parts_ns(posed: CutProblem, answer: Answer) -> dict[str, float]:
    """What a step is made of: the work of the busiest worker, sums and messages of the critical path, and the rest."""
    row, ns = posed.critical(answer.cut)
    spans = posed.durations(answer.cut)
    table = row.kinds * spans.kinds[0] / row.steps
    busiest = max(
        (_work(order, spans.kinds[0]) for order in posed.schedule.orders), key=lambda w: sum(w.values())
    )
    hops = float(row.hops.ravel()[spans.cells] @ spans.hop_ns[0]) / row.steps
    waits = {"sums": float(table[SYNC].sum()), "messages": hops}
    bubble = ns - sum(busiest.values()) - sum(waits.values())
    return {**busiest, "bubble": max(0.0, bubble), **waits}


def _work(order: Sequence[Action], took: IntArray) -> dict[str, int]:
    found = {"computing": 0, "recomputing": 0, "updating": 0}
    names = {Kind.R: "recomputing", Kind.STEP: "updating"}
    for action in order:
        if action.kind is not Kind.SYNC:
            found[names.get(action.kind, "computing")] += int(took[KINDS.index(action.kind), action.stage])
    return found


def _why(posed: CutProblem, answer: Answer) -> str:
    """Shares of the step."""
    parts = parts_ns(posed, answer)
    told = ["bubble", "sums", "messages", *(["recomputing"] if parts["recomputing"] else [])]
    shares = ", ".join(f"{name} {parts[name] / max(answer.ns, 1):.1%}" for name in told)
    memory = int((posed.memory(answer.cut[None, :])[0]).max())
    return f"{shares} of its step; fullest worker {memory} bytes"


def trivial(space: Instance) -> list[tuple[str, list[Configuration]]]:
    """What one would do without a planner: shapes by name, to be cut into stages of equally many layers."""
    free = Pins(schedules=("1f1b",), spatial=1, recompute=False, shard=False, update=space.pins.update)
    wide = _shapes(space, replace(free, pipeline=1))
    most = max((shape.data for shape in wide), default=1)
    deep = [x for x in _shapes(space, free) if 1 < x.workers <= _DEEPEST_TRIVIAL]
    used = max((x.devices for x in deep), default=0)
    cut = [
        shape
        for shape in _shapes(space, replace(free, spatial=None, pipeline=1, data=1))
        if shape.grid and not (shape.then or shape.shared)
    ]
    near = max((shape.spatial for shape in cut), default=1)
    spatial = (
        [("samples over most devices", [shape for shape in cut if shape.spatial == near])] if cut else []
    )
    return [
        ("pure data parallel", [shape for shape in wide if shape.data == most]),
        ("equal-depth 1f1b", [x for x in deep if x.devices == used]),
        ("one device", _shapes(space, replace(free, pipeline=1, data=1))),
        *spatial,
    ]


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
    return list(
        shapes(
            space.cluster,
            layers=space.layers,
            batch=space.batch,
            micros=space.micros(),
            pinned=pinned,
            splits=lambda micro: [s for s in space.splits(micro) if pinned.spatial is None or not s.grid],
        )
    )


def _best(space: Instance, name: str, chosen: Sequence[Configuration]) -> Rival:
    priced = []
    for shape in chosen:
        posed = space.problem(shape)
        if posed is not None:
            cut = equal_cut(posed)
            ns = int(judge(posed, cut[None, :])[0])
            priced.append((ns, shape, posed, cut))
    least = min(priced, key=lambda entry: (entry[0], entry[1]), default=None)
    if least is None:
        return Rival(name=name, step_ns=None, why="no such plan of this batch on these devices")
    if least[0] == UNFIT_NS:
        return Rival(name=name, step_ns=None, why=_lacks([(posed, cut) for _, _, posed, cut in priced]))
    ns, shape, posed, cut = least
    return Rival(name=f"{name}: {shape}", step_ns=ns, why=_why(posed, Answer(cut=cut, ns=ns)))


def _lacks(priced: Sequence[tuple[CutProblem, IntArray]]) -> str:
    short = min(int((p.memory(cut[None, :])[0] - p.available_bytes).max()) for p, cut in priced)
    return f"at least {short} bytes short on a device"
