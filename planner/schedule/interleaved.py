"""Interleaved 1F1B: several stages a worker, dealt round, so that filling the pipeline takes a chunk, not a worker.

Micro-batches go in rounds of at least D: every stage of a worker in turn for a whole round. Where D does not divide
the number of micro-batches the rounds are as even as they can be, which keeps the time and costs memory.
"""

from __future__ import annotations

from itertools import pairwise

from planner.schedule.action import Action, Kind, Schedule
from planner.schedule.assemble import Request, assemble, dealt


def interleaved(request: Request) -> Schedule:
    workers, chunks, micros = request.workers, request.chunks, request.micros
    rounds = _rounds(micros, workers)
    orders = []
    for worker in range(workers):
        forward = [(c * workers + worker, m) for turn in rounds for c in range(chunks) for m in turn]
        backward = [
            (c * workers + worker, m) for turn in rounds for c in reversed(range(chunks)) for m in turn
        ]
        warmup = min(len(forward), (chunks - 1) * len(rounds[0]) + 2 * (workers - 1 - worker) + 1)
        orders.append(_order(forward, backward, warmup))
    return assemble(request, dealt(workers, chunks), [0] * micros, orders)


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
