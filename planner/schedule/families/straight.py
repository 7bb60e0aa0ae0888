"""Pipelines that run one way: GPipe, 1F1B, ZB-H1, ZB-H2 and interleaved 1F1B.

One stage a worker: GPipe does all forwards, then all backwards; 1F1B takes them in turn.

1F1B: after a warm-up of forwards, one backward and one forward in turn, so that few micro-batches are in flight.

`warmup` is the number of forwards that the first worker does before its first backward. The numbers of the others fall
linearly to 1 on the last. The default D is the classic one and keeps D - s micro-batches on worker s. 2D - 1 hides a
hop a slot for nearly twice the memory: each worker then has one spare micro-batch at hand a hop.

ZB-H1 and ZB-H2: 1F1B with its backward split, where weight gradients wait and fill the bubbles.

Worker s does `w(s)` forwards before its first I and lets w(0) - w(s) weight gradients wait. Every worker then holds at
most w(0) micro-batches. H1 has 1F1B's warm-up, w(s) = D - s. H2 has the warm-up that hides the whole fill, 2(D - s) -
1, or less where there are fewer micro-batches. `warmup` sets w(0).

Interleaved 1F1B: several stages a worker, dealt round, so that filling the pipeline takes a chunk, not a worker.

Micro-batches go in rounds of at least D: every stage of a worker in turn for a whole round. Where D does not divide
the number of micro-batches the rounds are as even as they can be, which keeps the time and costs memory.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble, dealt
from planner.schedule.listing.frozen import order_fits, span_of
from planner.schedule.listing.scheduler import best_listed
from planner.schedule.listing.task import Limits, ListingJob, Policy, nominal


def gpipe(request: FamilyRequest) -> Schedule:
    """Generates the GPipe schedule, one stage a worker.

    Args: `request` has no settings of its own.
    """
    micros = range(request.micros)
    orders = [
        [Action(Kind.F, stage, m) for m in micros] + [Action(Kind.B, stage, m) for m in micros]
        for stage in range(request.workers)
    ]
    return assemble(request, (tuple(range(request.workers)),), [0] * request.micros, orders)


def one_f_one_b(request: FamilyRequest) -> Schedule:
    """Generates the 1F1B schedule, one stage a worker.

    Raises: BadInput for a `warmup` below 1.
    """
    first = request.whole("warmup", request.workers)
    if first < 1:
        raise BadInput(f"warmup is {first}", where="1f1b", allowed="1 or more forwards on the first worker")
    orders = [
        _order(stage, warmup_of(stage, request.workers, first), request.micros)
        for stage in range(request.workers)
    ]
    return assemble(request, (tuple(range(request.workers)),), [0] * request.micros, orders)


def warmup_of(stage: int, workers: int, first: int) -> int:
    """Returns the forwards that a worker does before its first backward; they fall linearly from `first` to
    1.

    The number is never below that of the next stage, so that no worker waits for a forward that waits for its
    own backward.

    Args: `first` is the number of the first worker; `stage` is the worker's.
    """
    if workers == 1:
        return 1
    after = workers - 1 - stage
    return 1 + -(-(first - 1) * after // (workers - 1))


def _order(stage: int, warmup: int, micros: int) -> list[Action]:
    ahead = min(warmup, micros)
    order = [Action(Kind.F, stage, m) for m in range(ahead)]
    for m in range(micros):
        order.append(Action(Kind.B, stage, m))
        if m + ahead < micros:
            order.append(Action(Kind.F, stage, m + ahead))
    return order


def zb_h1(request: FamilyRequest) -> Schedule:
    """Generates ZB-H1, with the memory of 1F1B.

    Args: `request` may set `warmup`, the forwards of the first worker before its first I.
    """
    return _zero_bubble(request, request.workers)


def zb_h2(request: FamilyRequest) -> Schedule:
    """Generates ZB-H2, with up to twice the memory of 1F1B.

    Args: `request` may set `warmup`, the forwards of the first worker before its first I.
    """
    workers = request.workers
    return _zero_bubble(request, max(workers, min(2 * workers - 1, request.micros)))


def _zero_bubble(request: FamilyRequest, warmup: int) -> Schedule:
    first = request.whole("warmup", warmup)
    if first < 1:
        raise BadInput(
            f"warmup is {first}", where=request.family, allowed="1 or more forwards on the first worker"
        )
    orders = []
    for stage in range(request.workers):
        own = warmup_of(stage, request.workers, first)
        orders.append(_split_order(stage, request.micros, own, first - own))
    return assemble(request, (tuple(range(request.workers)),), [0] * request.micros, orders)


def _split_order(stage: int, micros: int, warmup: int, waiting: int) -> list[Action]:
    ahead = min(warmup, micros)
    order = [Action(Kind.F, stage, m) for m in range(ahead)]
    for m in range(micros):
        order.append(Action(Kind.I, stage, m))
        if m >= waiting:
            order.append(Action(Kind.W, stage, m - waiting))
        if m + ahead < micros:
            order.append(Action(Kind.F, stage, m + ahead))
    order += [Action(Kind.W, stage, m) for m in range(max(0, micros - waiting), micros)]
    return order


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
        orders.append(_order_of_rounds(forward, backward, min(len(forward), warmup)))
    return orders


def _rounds(micros: int, workers: int) -> list[range]:
    count = max(1, micros // workers)
    each, left = divmod(micros, count)
    ends = [0]
    for turn in range(count):
        ends.append(ends[-1] + each + (turn < left))
    return [range(a, b) for a, b in pairwise(ends)]


def _order_of_rounds(
    forward: list[tuple[int, int]], backward: list[tuple[int, int]], warmup: int
) -> list[Action]:
    order = [Action(Kind.F, stage, m) for stage, m in forward[:warmup]]
    for turn, (stage, m) in enumerate(backward):
        order.append(Action(Kind.B, stage, m))
        order += [Action(Kind.F, s, k) for s, k in forward[warmup + turn : warmup + turn + 1]]
    return order
