"""Interleaved 1F1B: several stages a worker, dealt round, so that filling the pipeline takes a chunk, not a worker.

Micro-batches go in rounds of at least D: every stage of a worker in turn for a whole round. Where D does not divide
the number of micro-batches the rounds are as even as they can be, which keeps the time and costs memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble, dealt
from planner.schedule.listing.frozen import order_fits, span_of
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal


def interleaved(request: FamilyRequest) -> Schedule:
    """Generates interleaved 1F1B with `chunks` stages a worker.

    Args: `request.micros` may be any number; rounds are as even as they can be.
    """
    orders = _turns(request, ahead=2)
    return assemble(request, dealt(request.workers, request.chunks), [0] * request.micros, orders)


def interleaved_zb(request: FamilyRequest) -> Schedule:
    """Generates interleaved 1F1B with split backwards and half the fill.

    A worker's weight gradients follow as many backwards later as there are workers before it, which gives
    every message slack. They are listed into free time instead where that is shorter.

    Args: `request` may set `cap`, in micro-batches of one stage.
    """
    workers, chunks, micros = request.workers, request.chunks, request.micros
    cap = request.whole("cap", (chunks - 1) * len(_rounds(micros, workers)[0]) + workers)
    job = ListingJob(
        place=dealt(workers, chunks),
        pipe_of=[0] * micros,
        costs=nominal(workers * chunks),
        split=True,
        limits=Limits(memory=(cap,) * workers),
    )
    sequence = [
        [a._replace(kind=Kind.I) if a.kind is Kind.B else a for a in order]
        for order in _turns(request, ahead=1)
    ]
    jobs = [
        replace(job, sequence=sequence),
        *(replace(job, policy=Policy(tie=tie)) for tie in ("deep", "micro")),
    ]
    orders = best_listed(jobs).orders
    late = [_with_late_weights(order, worker) for worker, order in enumerate(sequence)]
    fits = all(order_fits(order, worker, job.limits, job.costs.stages) for worker, order in enumerate(late))
    if fits and span_of(job.place, late, job.costs) <= span_of(job.place, orders, job.costs):
        orders = late
    return assemble(request, job.place, job.pipe_of, orders)


def _with_late_weights(order: list[Action], lag: int) -> list[Action]:
    """Inserts the W of each backward after `lag` more backwards."""
    owed = [a._replace(kind=Kind.W) for a in order if a.kind is Kind.I]
    done: list[Action] = []
    backwards = paid = 0
    for action in order:
        done.append(action)
        backwards += action.kind is Kind.I
        if backwards - paid > lag:
            done.append(owed[paid])
            paid += 1
    return done + owed[paid:]


def _turns(request: FamilyRequest, ahead: int) -> list[list[Action]]:
    """Returns the orders whose warm-up grows by `ahead` forwards for each worker behind."""
    workers, chunks = request.workers, request.chunks
    rounds = _rounds(request.micros, workers)
    orders = []
    for worker in range(workers):
        forward = [(c * workers + worker, m) for turn in rounds for c in range(chunks) for m in turn]
        backward = [
            (c * workers + worker, m) for turn in rounds for c in reversed(range(chunks)) for m in turn
        ]
        warmup = (chunks - 1) * len(rounds[0]) + ahead * (workers - 1 - worker) + 1
        orders.append(_order(forward, backward, min(len(forward), warmup)))
    return orders


def _rounds(micros: int, workers: int) -> list[range]:
    count = max(1, micros // workers)
    each, left = divmod(micros, count)
    ends = [0]
    for turn in range(count):
        ends.append(ends[-1] + each + (turn < left))
    return [range(a, b) for a, b in pairwise(ends)]


def _order(forward: list[tuple[int, int]], backward: list[tuple[int, int]], warmup: int) -> list[Action]:
    order = [Action(Kind.F, stage, m) for stage, m in forward[:warmup]]
    for turn, (stage, m) in enumerate(backward):
        order.append(Action(Kind.B, stage, m))
        order += [Action(Kind.F, s, k) for s, k in forward[warmup + turn : warmup + turn + 1]]
    return order
