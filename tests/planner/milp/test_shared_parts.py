"""The solver prices and chooses what replicas share of tensors that their groups have in parts."""

from __future__ import annotations

import pytest

from planner.milp import Question, solve
from planner.plan import Plan, is_cut, shard_of
from planner.verify import violations
from tests.runtime.layout.test_memory import HEADS, TINY
from tests.runtime.test_memory_model import machines, profile

MICRO = 4


def solved(memory_bytes: int = 2**34, **fix: object) -> Plan:
    costs, cluster = profile("gpt2", tuple(sorted(TINY)), MICRO), machines(4, memory_bytes)
    given = {"data": 2, "pipeline": 1, "group": "2", "cut": HEADS, "recompute": False, "schedule": "1f1b"}
    plan = solve(Question(profile=costs, cluster=cluster, batch=4 * MICRO, fix={**given, **fix}))
    assert is_cut(plan) and violations(plan, profile=costs, cluster=cluster) == []
    assert plan.certificate is not None and plan.certificate.gap == 0
    return plan


def held(plan: Plan) -> int:
    return max(x.total - x.margin for x in plan.prediction.memory)


def test_less_is_held_the_more_replicas_share() -> None:
    plans = {what: solved(shard=what) for what in ("none", "state", "gradients", "parameters")}
    assert [shard and shard.what for shard in (shard_of(x, 0) for x in plans.values())] == [
        None,
        *[*plans][1:],
    ]
    sizes = {what: plan.prediction.memory[0] for what, plan in plans.items()}
    whole = sizes["none"]
    assert whole.optimizer / 2 <= sizes["state"].optimizer < whole.optimizer
    for what, shares in {"gradients": 1, "parameters": 2}.items():
        own = sizes[what]
        kept = whole.optimizer + whole.gradients + (shares == 2) * whole.parameters
        mine = own.optimizer + own.gradients + (shares == 2) * own.parameters
        assert mine == pytest.approx(kept / 2, rel=0.02)
    assert held(plans["parameters"]) < held(plans["gradients"]) < held(plans["none"])


def test_where_memory_asks_for_it_replicas_share_parts_unasked() -> None:
    whole, parts = solved(shard="none"), solved(shard="parameters")
    between = (held(whole) + held(parts)) // 2
    margin = whole.prediction.memory[0].margin
    plan = solved(memory_bytes=between + margin)
    assert shard_of(plan, 0) is not None
    assert held(plan) <= between < held(whole)
