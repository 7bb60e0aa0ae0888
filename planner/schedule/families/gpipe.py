"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

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
