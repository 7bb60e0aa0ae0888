"""Updates at use: what a plan whose STEPs stand before the forwards may not ask for, since it needs all gradients.

An update at use is made while gradients of other stages are still on their way. Whatever looks at the whole step
before the first update ends that overlap; it is refused with the reason, never done from half of the gradients.
"""

from __future__ import annotations

from planner.errors import BadPlan
from planner.model import ModelGraph
from planner.plan import Plan
from planner.schedule.overlap import overlap_of, updates_at_use
from planner.simulate import schedule_of

WAY_OUT = "plan with update: barrier"


def check(plan: Plan, graph: ModelGraph, clip_norm: float | None) -> None:
    overlap_of(dict(plan.schedule.settings), "schedule.settings")
    if not updates_at_use(schedule_of(plan)):
        return
    for wrong, reason in _reasons(plan, graph, clip_norm):
        if wrong:
            raise BadPlan(f"updates at use cannot be had with {reason}; {WAY_OUT}")


def _reasons(plan: Plan, graph: ModelGraph, clip_norm: float | None) -> list[tuple[bool, str]]:
    return [
        (plan.schedule.update == "barrier", "update: barrier, which waits for every gradient"),
        (clip_norm is not None, "clipping: the global norm is known when every gradient is in"),
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
