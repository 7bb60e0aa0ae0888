"""Corrections are found again in runs that were made with them, and taken out of plans as they were put in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from planner.calibrate import Observation, fit
from planner.calibrate.lines import nine_of_ten
from planner.calibrate.refine import nominal_plan, repredicted
from planner.cluster import Correction, Corrections
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan, mesh_of
from planner.simulate import simulate_plan
from planner.timeline import CONVERSION_COLUMNS, SEND, Timeline, concatenate
from tests.planner.milp.instances import chain, cluster, profile


def correction(start_us: float, factor: float) -> Correction:
    return Correction(start_s=start_us * 1e-6, factor=factor, samples=1)


TRUE = Corrections(
    forward=correction(0, 1.2),
    backward=correction(0, 1.3),
    input_grad=correction(0, 1.1),
    weight_grad=correction(0, 1.1),
    update=correction(0, 1.6),
    hop=correction(300, 1.0),
    sum=correction(700, 1.0),
    step_spread=0.0,
    rests_on=("the truth",),
)


def planned(seed: int, family: str, data: int = 1) -> Plan:
    costs = profile(chain(6, seed), scale=1000.0)
    costs = replace(
        costs,
        optimizer=replace(
            costs.optimizer, seconds_per_parameter=replace(costs.optimizer.seconds_per_parameter, median=1e-7)
        ),
    )
    machines = cluster(2 * data, latency_s=1e-4, bandwidth=1e8)
    return solve(
        Question(
            profile=costs, cluster=machines, batch=8, fix={"pipeline": 2, "data": data, "schedule": family}
        )
    )


def run_of(plan: Plan, truth: Corrections) -> Observation:
    """Twelve equal steps of what would happen if `truth` were true, as ranks record it."""
    timeline = simulate_plan(repredicted(plan, truth), steps=12)
    kept = np.array([event.name != SEND for event in timeline.events()])
    columns = {
        name: getattr(timeline, name)[kept]
        for name in ("step", "rank", "code", "start_ns", "end_ns", "wait_ns")
    }
    return Observation(plan=plan, timeline=Timeline(**columns))


def numbers(fitted: Corrections) -> Iterator[tuple[str, Correction]]:
    for name in ("forward", "backward", "input_grad", "weight_grad", "update", "hop", "sum"):
        row = getattr(fitted, name)
        if row is not None:
            yield name, row


def test_what_a_run_was_made_with_is_found_again() -> None:
    runs = [
        run_of(planned(seed, family), TRUE) for seed, family in enumerate(2 * ("1f1b", "zb-h1", "chimera"))
    ]
    found = fit(runs)
    for name, row in numbers(found):
        true = getattr(TRUE, name)
        assert row.factor == pytest.approx(true.factor, rel=0.01), name
        assert row.start_s == pytest.approx(true.start_s, rel=0.02, abs=1e-6), name
    assert found.step_spread < 0.01
    for run in runs:
        assert repredicted(run.plan, found).prediction.step_ns == pytest.approx(run.step_ns, rel=0.01)


def test_an_error_that_no_correction_explains_is_in_the_bar() -> None:
    plans = [planned(seed, "1f1b") for seed in range(3)]
    slow = TRUE.model_copy(update={"forward": correction(0, 2.4), "backward": correction(0, 2.6)})
    runs = [run_of(plans[0], TRUE), run_of(plans[1], TRUE), run_of(plans[2], slow)]
    assert fit(runs).step_spread > 0.3


def test_corrections_come_out_of_a_plan_as_they_went_in_and_a_run_of_it_confirms_them() -> None:
    plain = planned(1, "chimera")
    known = repredicted(plain, TRUE)
    back = nominal_plan(known)
    for before, after in zip((*plain.times, *plain.hops), (*back.times, *back.hops), strict=True):
        for (name, was), (_, now) in zip(before, after, strict=True):
            assert now == (pytest.approx(was, abs=2) if name.endswith("ns") else was)
    again = fit([run_of(known, TRUE)])
    assert again.forward is not None and again.forward.factor == pytest.approx(1.2, rel=0.01)


def test_a_plan_made_with_corrections_says_the_same_as_one_corrected_later() -> None:
    costs, machines = profile(chain(6, 2), scale=1000.0), cluster(2, latency_s=1e-4, bandwidth=1e8)
    fix = {"pipeline": 2, "schedule": "1f1b"}
    known = solve(
        Question(profile=costs, cluster=machines.model_copy(update={"fitted": TRUE}), batch=8, fix=fix)
    )
    stages = [list(stage.layers) for stage in known.stages]
    later = repredicted(
        solve(Question(profile=costs, cluster=machines, batch=8, fix={**fix, "stages": stages})), TRUE
    )
    assert known.prediction.step_ns == pytest.approx(later.prediction.step_ns, rel=1e-5)


def test_pauses_of_the_machine_do_not_count() -> None:
    run = run_of(planned(1, "1f1b"), TRUE)
    late = np.where(run.timeline.step == 7, 40_000_000, 0) * (run.timeline.rank == 1)
    paused = replace(run.timeline, end_ns=run.timeline.end_ns + late)
    assert fit([replace(run, timeline=paused)]).forward == fit([run]).forward


def test_runs_that_sleep_and_runs_that_compute_are_not_mixed() -> None:
    run = run_of(planned(1, "1f1b"), TRUE)
    with pytest.raises(BadInput, match="sleep"):
        fit([run, replace(run, content="sleep")])


def test_a_run_that_is_all_warm_up_is_refused() -> None:
    run = run_of(planned(1, "1f1b"), TRUE)
    with pytest.raises(BadInput, match="2 steps"):
        fit([replace(run, timeline=simulate_plan(run.plan, steps=2))])


def test_sums_of_one_stage_count_while_any_is_under_way_from_its_last_launch() -> None:
    run = run_of(planned(1, "chimera"), TRUE)
    timeline = run.timeline
    sums = np.array([event.name == "COLLECTIVE" for event in timeline.events()])
    early = np.where(sums & (timeline.rank == 0), 400_000, 0)  # one rank launches long before the other
    halves = timeline.start_ns + (timeline.end_ns - timeline.start_ns) // 2
    first = {name: getattr(timeline, name)[sums] for name in ("step", "rank", "code", "wait_ns")}
    second = Timeline(**first, start_ns=halves[sums], end_ns=timeline.end_ns[sums])
    split = replace(
        timeline, start_ns=timeline.start_ns - early, end_ns=np.where(sums, halves, timeline.end_ns)
    )
    assert fit([replace(run, timeline=concatenate([split, second]))]).sum == fit([run]).sum


def test_steps_that_overlap_take_as_long_as_from_one_end_to_the_next() -> None:
    costs = profile(chain(6, 2), scale=1000.0)
    plan = solve(
        Question(
            profile=costs,
            cluster=cluster(2),
            batch=8,
            fix={"pipeline": 2, "schedule": "zb-h2", "update": "rolling"},
        )
    )
    run = Observation(plan=plan, timeline=simulate_plan(plan, steps=12))
    assert run.step_ns == pytest.approx(plan.prediction.step_ns, rel=0.01)
    assert run.timeline.of_step(5).makespan_ns > 1.05 * plan.prediction.step_ns


def in_parts(seed: int, share: float) -> Plan:
    """A plan of which conversions take a share."""
    plan = planned(seed, "1f1b")
    times = [
        each.model_copy(
            update={
                "forward_conversions_ns": round(share * each.forward_ns),
                "backward_conversions_ns": round(share * each.backward_ns),
            }
        )
        for each in plan.times
    ]
    return plan.model_copy(update={"times": tuple(times), "certificate": None})


def converting(run: Observation, truth: Corrections) -> Observation:
    """The run with a record of what conversions took, which is what its plan says when corrected."""
    times, rows = repredicted(run.plan, truth).times, run.timeline
    ways = {"F": "forward_conversions_ns", "B": "backward_conversions_ns"}
    own = [
        (step, rank, code, getattr(times[event.stage], ways[event.name]))
        for step, rank, code, event in zip(rows.step, rows.rank, rows.code, rows.events(), strict=True)
        if event.name in ways
    ]
    table = np.array(own, np.int64)
    columns = {name: table[:, i] for i, name in enumerate(CONVERSION_COLUMNS)}
    return replace(run, timeline=replace(rows, **columns))


def test_conversions_are_corrected_apart_from_computing_so_that_plans_without_them_are_right() -> None:
    truth = TRUE.model_copy(update={"conversion": correction(0, 4.0)})
    plans = [in_parts(seed, share) for seed, share in enumerate((0.5, 0.6, 0.3))]
    found = fit([converting(run_of(plan, truth), truth) for plan in plans])
    assert found.conversion is not None and found.conversion.factor == pytest.approx(4.0, rel=0.01)
    assert found.forward is not None and found.forward.factor == pytest.approx(1.2, rel=0.01)
    assert found.backward is not None and found.backward.factor == pytest.approx(1.3, rel=0.01)
    without = planned(3, "1f1b")
    assert repredicted(without, found).prediction.step_ns == pytest.approx(
        repredicted(without, truth).prediction.step_ns, rel=0.01
    )


def test_bars_of_a_group_that_no_run_had_cover_its_step_without_the_correction_of_conversions() -> None:
    truth = TRUE.model_copy(update={"conversion": correction(0, 4.0)})
    plans = [in_parts(seed, share) for seed, share in enumerate((0.5, 0.6, 0.3))]
    found = fit([converting(run_of(plan, truth), truth) for plan in plans])
    assert found.groups == (mesh_of(plans[0]),)
    plain = found.model_copy(update={"conversion": correction(0, 1.0)})
    of_another = found.model_copy(update={"groups": ((3,),)})
    known, sure = repredicted(plans[0], plain).prediction, repredicted(plans[0], found).prediction
    unsure = repredicted(plans[0], of_another).prediction
    assert (unsure.step_ns, unsure.high_ns) == (sure.step_ns, sure.high_ns)
    assert unsure.low_ns == known.low_ns < sure.low_ns


def test_a_plan_is_judged_by_runs_of_other_plans_however_often_it_ran() -> None:
    slow = TRUE.model_copy(update={"forward": correction(0, 2.4), "backward": correction(0, 2.6)})
    plans = [(planned(seed, "1f1b"), truth) for seed, truth in enumerate((TRUE, TRUE, slow))]
    runs = [run_of(*each) for each in plans]
    assert fit(4 * runs).step_spread == pytest.approx(fit(runs).step_spread, rel=0.05)


def test_the_bar_of_few_plans_is_wider_than_their_worst_error_and_that_of_many_is_not() -> None:
    assert nine_of_ten([0.1, 0.1, 0.1], 3) == pytest.approx(2.353 * (4 / 3) ** 0.5 * 0.1)
    assert nine_of_ten([0.1] * 20, 20) == pytest.approx(0.1)
    assert nine_of_ten([0.2], 1) == 0.2
