"""The parts in which data-parallel replicas sum their gradients, where updates come when a part is used.

There the best order depends on the cut, and a shape of the family `overlap` includes both: what is proved of it holds
for them. The cut is the better of parts of equal work and parts of equal bytes; k and the order of the sums are
searched for its costs. Otherwise parts are cut as the stages of any family are.
"""

from __future__ import annotations

from dataclasses import replace

from planner.arrays import IntArray
from planner.milp.cut.frozen_order import Order
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.stage_costs import KINDS
from planner.milp.search.descent import even, judge, near
from planner.plan import StageTimes
from planner.schedule import Kind, generate, overlapped, with_recompute
from planner.simulate import best_overlap

FAMILY = "overlap"


def arranged(problem: CutProblem, own: IntArray | None) -> CutProblem:
    """The problem with its cut fixed, to the user's own where there is one, and the best order for it."""
    cuts = [own] if own is not None else [even(problem), near(problem, problem.tables.gradients[0])]
    ready = [_ordered(problem, cut) for cut in cuts]
    ns = [int(judge(each, cut[None, :])[0]) for each, cut in zip(ready, cuts, strict=True)]
    best = ns.index(min(ns))
    return replace(ready[best], fixed=cuts[best])


def _ordered(problem: CutProblem, cut: IntArray) -> CutProblem:
    shape = problem.shape
    whole = generate("1f1b", workers=shape.workers, micros=shape.micros)
    best = best_overlap(whole, _times(problem, cut), (), parts=shape.chunks, update=shape.update)
    problem.meter.compiled(2 * (shape.stages + 1) * problem.order.actions)
    cut_up = generate(FAMILY, workers=shape.workers, micros=shape.micros, chunks=shape.chunks)
    schedule = overlapped(cut_up, replace(best.overlap, parts=1))
    if shape.recompute:
        schedule = with_recompute(schedule, range(schedule.stages))
    return replace(problem, order=Order(schedule))


def _times(problem: CutProblem, cut: IntArray) -> list[StageTimes]:
    """Recomputing counts with the backward: orders are searched without it."""
    table = problem.durations(cut).kinds[0]
    row = {kind: table[KINDS.index(kind)].tolist() for kind in KINDS}
    again = row[Kind.R] if problem.shape.recompute else [0] * problem.stages
    return [
        StageTimes(
            forward_ns=row[Kind.F][p],
            backward_ns=row[Kind.B][p] + again[p],
            input_grad_ns=row[Kind.I][p] + again[p],
            weight_grad_ns=row[Kind.W][p],
            sync_ns=row[Kind.SYNC][p],
            step_ns=row[Kind.STEP][p],
        )
        for p in range(problem.stages)
    ]
