"""Tables of layers become profiles of ours, priced and cut like any; missing collections are said, not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import sailor, vtrain
from benchmarks.adapters import public
from benchmarks.adapters.public import Row
from benchmarks.adapters.vtrain import START, Constants, Measured, closed_form_s, cluster, fit
from planner.cluster import Link
from planner.milp import Question, solve
from planner.simulate import period_of_plan

WIRE = Link(latency_s=1e-5, bandwidth_bytes_per_s=2e11)


def measured(known: Constants) -> list[Measured]:
    rows = []
    for hidden, layers, data, pipeline, micro in [
        (1024, 12, 2, 1, 1),
        (1024, 12, 1, 2, 2),
        (1024, 24, 2, 2, 4),
        (2048, 12, 4, 1, 2),
        (2048, 24, 1, 4, 1),
        (2048, 24, 2, 2, 8),
    ]:
        row = Measured(
            gpus=data * pipeline,
            batch=32,
            micro=micro,
            hidden=hidden,
            layers=layers,
            sequence=1024,
            data=data,
            pipeline=pipeline,
            step_s=1.0,
        )
        rows.append(Measured(**{**vars(row), "step_s": closed_form_s(row, known, WIRE)}))
    return rows


def test_constants_are_found_again_in_times_that_were_made_with_them() -> None:
    true = Constants(4e-3, 180e12, 600.0, 0.05, 1e-3)
    found = fit(measured(true), WIRE)
    for row in measured(true):
        assert closed_form_s(row, found, WIRE) == pytest.approx(row.step_s, rel=1e-3)


def test_the_simulated_time_of_a_measured_plan_is_near_the_formula_it_was_fitted_by() -> None:
    for row in measured(START):
        assert vtrain.priced_s(row, START, WIRE) == pytest.approx(row.step_s, rel=0.1)


def test_messages_in_turn_keep_both_ends_busy() -> None:
    rows = [Row(weight_bytes=4, out_bytes=10**6, saved_bytes=0, seconds={1: (0.01, 0.02)}) for _ in range(4)]
    costs = public.profile("hand", rows, state_bytes_per_element=8, seconds_per_element=0.0)
    machines = cluster(2, Link(latency_s=0.0, bandwidth_bytes_per_s=1e9))  # a message takes 1 ms
    fix = {"pipeline": 2, "data": 1, "schedule": "1f1b", "stages": [["0", "1"], ["2", "3"]]}
    plan = solve(Question(profile=costs, cluster=machines, batch=8, fix=fix))
    beside, turns = period_of_plan(plan), period_of_plan(public.in_turn(plan))
    assert beside == pytest.approx(9 * 60e6, rel=0.02)
    assert turns == pytest.approx(9 * 62e6, rel=0.01)


def test_without_its_data_a_benchmark_says_so_and_claims_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_DATA", str(tmp_path))
    for result in (sailor.run(True), vtrain.run(True)):
        assert result.tables == [] and "Skipped: no folder" in result.claim


def test_a_line_is_least_sure_far_from_the_points_it_was_fitted_to() -> None:
    points = [(1.0, 2.02), (2.0, 3.96), (3.0, 6.06), (4.0, 7.92)]  # 1 % off a slope of 2, this way and that
    near, far = (sailor.standard_error(points, 0.0, 2.0, at) for at in (2.5, 8.0))
    assert near == pytest.approx(0.01 * (2 * 1.25) ** 0.5) and far > 2 * near


def test_plans_that_are_not_scored_are_counted(tmp_path: Path) -> None:
    plan = "{},16,4,1024,16,24,1024,{},2,2,100.0\n"
    (tmp_path / "single.csv").write_text("head\n" + plan.format(4, 1) + plan.format(8, 2))
    (tmp_path / "multi.csv").write_text("head\n" + "3.6," + plan.format(64, 1) + "3.6," + plan.format(64, 2))
    told = vtrain.unscored(tmp_path)
    assert (
        "Of 4 measured plans 1 are scored" in told
        and "all 2 over several nodes (1 of tensor degree 1)" in told
    )
