"""The solver hides sums of gradients in parts of data-parallel replicas where that gains, unless it is told not to."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest

from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan, schedule_of
from planner.schedule import generate, updates_at_use, with_recompute
from planner.verify import violations
from tests.draws import part
from tests.planner.milp.instances import chain, cluster, profile

WIDE = {"pipeline": 1, "data": 4}


@cache
def plan_of(seed: int, **fix: object) -> Plan:
    costs, machines = profile(chain(24, seed)), cluster(4, 1)
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix={**WIDE, **fix}))
    assert violations(plan, profile=costs, cluster=machines) == []
    assert plan.certificate is not None and plan.certificate.gap == 0
    return plan


@pytest.mark.parametrize(("seed", "update"), part(product(range(3), ["barrier", "rolling"]), 3))
def test_parts_of_replicas_hide_sums_and_off_leaves_them_in_one(seed: int, update: str) -> None:
    plain = plan_of(seed, update=update, out_of_order="off")
    assert (plain.schedule.family, len(plain.stages)) == ("1f1b", 1)
    plan = plan_of(seed, update=update)
    assert plan.schedule.family == "overlap" and len(plan.stages) == plan.schedule.chunks > 1
    whole = plain.times[0]
    computed = plan.batch.micros * (whole.forward_ns + whole.backward_ns) + whole.step_ns
    hidden = plain.prediction.step_ns - plan.prediction.step_ns
    assert hidden > 0.7 * (plain.prediction.step_ns - computed)


def test_with_updates_at_use_more_is_hidden_than_with_a_barrier() -> None:
    rolling, barrier = plan_of(0, update="rolling"), plan_of(0, update="barrier")
    assert updates_at_use(schedule_of(rolling)) and not updates_at_use(schedule_of(barrier))
    assert rolling.prediction.step_ns < barrier.prediction.step_ns


def test_what_needs_every_gradient_gets_no_updates_at_use() -> None:
    plan = plan_of(0, update="rolling", shard="on", schedule="overlap")
    assert plan.schedule.family == "overlap" and not updates_at_use(schedule_of(plan))


@pytest.mark.parametrize("recompute", ["on", "off"])
def test_the_settings_of_a_plan_make_its_order_again(recompute: str) -> None:
    plan = plan_of(1, update="rolling", recompute=recompute)
    choice = plan.schedule
    made = generate(
        choice.family,
        workers=1,
        micros=plan.batch.micros,
        chunks=choice.chunks,
        **choice.settings,  # type: ignore[arg-type]
    )
    again = with_recompute(made, range(len(plan.stages)) if recompute == "on" else ())
    assert again == replace(schedule_of(plan), settings=again.settings)


def test_a_pipeline_in_parts_is_planned_where_it_is_asked_for() -> None:
    costs, machines = profile(chain(24, 0)), cluster(4, 1)
    fix = {"schedule": "overlap", "pipeline": 2, "data": 2, "chunks": 4}
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix=fix))
    assert violations(plan, profile=costs, cluster=machines) == []
    assert plan.schedule.place == ((0, 0, 0, 0, 1, 1, 1, 1),)


def test_on_or_off_is_all_that_can_be_said_of_it() -> None:
    with pytest.raises(BadInput, match="out_of_order is 'maybe'"):
        plan_of(0, out_of_order="maybe")


def test_compiled_replicas_that_round_to_bf16_stay_in_one() -> None:
    made = profile(chain(24, 0))
    rows = {key._replace(precision="bf16", execution="compiled"): cost for key, cost in made.costs.items()}
    costs, asked = replace(made, costs=rows), {"precision": "bf16", "execution": "compiled", "batch": 8}
    assert solve(Question(profile=costs, cluster=cluster(4, 1), fix=WIDE, **asked)).schedule.family == "1f1b"  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="overlap in parts: a compiler fuses"):
        solve(Question(profile=costs, cluster=cluster(4, 1), fix={**WIDE, "schedule": "overlap"}, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "micros"), part(product(range(4), [1, 2]), 4))
def test_parts_of_a_pipeline_are_cut_where_no_other_cut_is_faster(seed: int, micros: int) -> None:
    costs, machines = profile(chain(7, seed)), cluster(2, 1)
    fix = {"data": 1, "pipeline": 2, "micro": 1, "schedule": "overlap", "chunks": 2}
    plan = solve(Question(profile=costs, cluster=machines, batch=micros, fix=fix))
    assert plan.certificate is not None and plan.certificate.gap == 0
    for cuts in combinations(range(1, len(costs.graph.layers)), 3):
        other = solve(
            Question(
                profile=costs, cluster=machines, batch=micros, fix={**fix, "cuts": ",".join(map(str, cuts))}
            )
        )
        assert other.prediction.step_ns >= plan.prediction.step_ns


def test_a_plan_with_updates_at_use_keeps_its_time_where_its_cut_is_given() -> None:
    costs, machines = profile(chain(24, 0)), cluster(4, 1)
    plan = plan_of(0, update="rolling")
    cuts = ",".join(stage.layers[0] for stage in plan.stages[1:])
    fix = {**WIDE, "update": "rolling", "schedule": "overlap", "micro": plan.batch.micro, "cuts": cuts}
    same = solve(
        Question(profile=costs, cluster=machines, batch=8, fix={**fix, "chunks": plan.schedule.chunks})
    )
    assert same.prediction.step_ns == plan.prediction.step_ns
