"""The check of plans that update at use: what they may not ask for, since it needs all gradients.

An update at use is a STEP that stands before the forward that needs it, while gradients of other stages are
still on their way. Whatever looks at the whole step before the first update ends that overlap. It is refused
with the reason, never done from half of the gradients.
"""

from __future__ import annotations

from typing import Literal

from planner.errors import BadPlan
from planner.model import ModelGraph
from planner.plan import Plan, schedule_of
from planner.schedule import overlap_of, updates_at_use

WAY_OUT = "plan with update: barrier"


ClipBy = Literal["step", "previous"]  # whose norm


def check(plan: Plan, graph: ModelGraph, clip_norm: float | None, clip_by: ClipBy = "step") -> None:
    """Raises BadPlan where a plan updates at use and something needs all gradients before the first update.

    It also refuses fp16 that is clipped by the previous norm.
    Args: `clip_norm` is the longest norm allowed, or None; `clip_by` tells whose norm it is.
    """
    if clip_by == "previous" and plan.precision == "fp16":
        raise BadPlan(
            "fp16 is clipped by its step's own norm, which its scaler looks at anyway: use clip_by: step"
        )
    overlap_of(dict(plan.schedule.settings), "schedule.settings")
    if not updates_at_use(schedule_of(plan)):
        return
    for wrong, reason in _reasons(plan, graph, clip_norm is not None and clip_by == "step"):
        if wrong:
            raise BadPlan(f"updates at use cannot be had with {reason}; {WAY_OUT}")


def _reasons(plan: Plan, graph: ModelGraph, clipped: bool) -> list[tuple[bool, str]]:
    return [
        (plan.schedule.update == "barrier", "update: barrier, which waits for every gradient"),
        (
            clipped,
            "clipping: the global norm is known when every gradient is in (or clip by that of the step before: "
            "clip_by: previous)",
        ),
        (plan.precision == "fp16", "fp16: its scaler leaves a step out when any gradient overflowed"),
        (
            graph.loss_kind == "sum_count",
            "a loss of (sum, count): its mean is known when every micro-batch is counted",
        ),
        (
            plan.shard_optimizer,
            "a sharded optimizer: updates are handed round on the link that the sums are on",
        ),
    ]
