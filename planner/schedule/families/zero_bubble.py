"""ZB-H1 and ZB-H2: 1F1B with its backward split, where weight gradients wait and fill the bubbles.

Worker s does `w(s)` forwards before its first I and lets w(0) - w(s) weight gradients wait. Every worker then holds at
most w(0) micro-batches. H1 has 1F1B's warm-up, w(s) = D - s. H2 has the warm-up that hides the whole fill, 2(D - s) -
1, or less where there are fewer micro-batches. `warmup` sets w(0).
"""

from __future__ import annotations

from planner.errors import BadInput
from planner.schedule.actions import Action, Kind, Schedule
from planner.schedule.build import FamilyRequest, assemble
from planner.schedule.families.straight import warmup_of


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
        orders.append(_order(stage, request.micros, own, first - own))
    return assemble(request, (tuple(range(request.workers)),), [0] * request.micros, orders)


def _order(stage: int, micros: int, warmup: int, waiting: int) -> list[Action]:
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
