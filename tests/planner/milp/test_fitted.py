"""Plans of a cluster with corrections: proved for the corrected costs, with the error bars of the runs."""

from __future__ import annotations

import pytest

from planner.cluster import Correction, Corrections
from planner.milp import Question, solve
from planner.plan import yaml as plan_yaml
from planner.profile import corrected
from planner.verify import violations
from tests.planner.milp import oracle
from tests.planner.milp.instances import chain, cluster, profile

FAMILIES = ("1f1b", "chimera", "zb-h1", "interleaved")
LATE = Correction(start_s=4e-7, factor=1.5, samples=3)
EVERY = Corrections(
    forward=LATE,
    backward=LATE,
    input_grad=LATE,
    weight_grad=LATE,
    update=LATE,
    hop=LATE,
    sum=LATE,
    step_spread=0.2,
    rests_on=("a run",),
)


@pytest.mark.parametrize("seed", range(4))
def test_no_cut_is_faster_than_the_plan_once_times_are_corrected(seed: int) -> None:
    costs = profile(chain(6, seed, skips=seed % 2, loose=seed == 3))
    machines = cluster(3).model_copy(update={"fitted": EVERY})
    best = oracle.best(corrected(costs, EVERY), machines, 4, FAMILIES, launch_ns=400)
    plan = solve(Question(profile=costs, cluster=machines, batch=4, schedules=FAMILIES))
    assert plan.certificate is not None and best is not None
    assert plan.certificate.objective_ns == plan.certificate.bound_ns == best.ns
    assert (
        plan.prediction.step_ns
        > solve(Question(profile=costs, cluster=cluster(3), batch=4, schedules=FAMILIES)).prediction.step_ns
    )


def test_a_corrected_prediction_has_at_least_the_error_bar_of_the_runs_and_names_them() -> None:
    plan = solve(
        Question(
            profile=profile(chain(6, 1)), cluster=cluster(3).model_copy(update={"fitted": EVERY}), batch=4
        )
    )
    step = plan.prediction.step_ns
    assert plan.prediction.low_ns <= 0.8 * step and plan.prediction.high_ns >= 1.2 * step
    assert plan.fitted == EVERY
    assert plan_yaml.parse(plan_yaml.dump(plan)) == plan


def test_a_plan_may_be_faster_than_its_profile_where_runs_were_and_only_there() -> None:
    costs = profile(chain(6, 1), scale=100.0)
    quick = EVERY.model_copy(update={"forward": Correction(factor=0.8, samples=3)})
    machines = cluster(3).model_copy(update={"fitted": quick})
    plan = solve(Question(profile=costs, cluster=machines, batch=4, fix={"pipeline": 3, "schedule": "1f1b"}))
    assert violations(plan, profile=costs, cluster=machines) == []
    assert violations(plan.model_copy(update={"fitted": None}), profile=costs) != []
