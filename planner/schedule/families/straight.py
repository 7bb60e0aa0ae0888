"""Pipelines of one stage a worker: GPipe does all forwards, then all backwards; 1F1B takes them in turn.

1F1B: after a warm-up of forwards, one backward and one forward in turn, so that few micro-batches are in flight.

`warmup` is the number of forwards that the first worker does before its first backward. The numbers of the others fall
linearly to 1 on the last. The default D is the classic one and keeps D - s micro-batches on worker s. 2D - 1 hides a
hop a slot for nearly twice the memory: each worker then has one spare micro-batch at hand a hop.

ZB-H1 and ZB-H2: 1F1B with its backward split, where weight gradients wait and fill the bubbles.

Worker s does `w(s)` forwards before its first I and lets w(0) - w(s) weight gradients wait. Every worker then holds at
most w(0) micro-batches. H1 has 1F1B's warm-up, w(s) = D - s. H2 has the warm-up that hides the whole fill, 2(D - s) -
1, or less where there are fewer micro-batches. `warmup` sets w(0).
"""

from __future__ import annotations

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble


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
