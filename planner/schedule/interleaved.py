"""Interleaved 1F1B: several stages a worker, dealt round, so that filling the pipeline takes a chunk, not a worker.

Micro-batches go in rounds of at least D: every stage of a worker in turn for a whole round. Where D does not divide
the number of micro-batches the rounds are as even as they can be, which keeps the time and costs memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.assemble import Request, assemble, dealt
from planner.schedule.costs import Limits, nominal
from planner.schedule.list_job import Job, Policy
from planner.schedule.list_scheduler import best_listed


def interleaved(request: Request) -> Schedule:
    orders = _turns(request, ahead=2)
    return assemble(request, dealt(request.workers, request.chunks), [0] * request.micros, orders)


def interleaved_zb(request: Request) -> Schedule:
    """The same with split backwards and half the fill; weight gradients are listed into what is free."""
    workers, chunks, micros = request.workers, request.chunks, request.micros
    cap = request.whole("cap", (chunks - 1) * len(_rounds(micros, workers)[0]) + workers)
    job = Job(
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
    return assemble(request, job.place, job.pipe_of, best_listed(jobs).orders)


def _turns(request: Request, ahead: int) -> list[list[Action]]:
    """`ahead` forwards more on a worker for each worker behind it."""
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
