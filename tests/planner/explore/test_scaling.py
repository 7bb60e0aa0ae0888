"""More devices, larger batches: each row is a plan of its own, and the knee and the lemma follow from the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cluster import Cluster
from planner.explore import Lemma, ScalingRow, Sweep, over_batches, over_devices
from planner.explore.scaling import computing_ns, first_near_best, knee_of_devices, overhead
from planner.milp import Question, solve
from planner.plan import Plan
from planner.profile import Profile, Seconds
from planner.show import data as shown_data
from planner.show import text
from tests.planner.milp.instances import chain, cluster, profile

FAMILIES = ("1f1b", "gpipe")


def question(costs: Profile, machines: Cluster, batch: int = 1) -> Question:
    return Question(profile=costs, cluster=machines, batch=batch, schedules=FAMILIES)


def row(asked: int, samples_per_s: float) -> ScalingRow:
    plan = solve(Question(profile=profile(chain(2, 0)), cluster=cluster(1), batch=4, schedules=["1f1b"]))
    step_ns = round(plan.batch.samples * 1e9 / samples_per_s)
    return ScalingRow(
        asked=asked,
        plan=plan.model_copy(update={"prediction": plan.prediction.model_copy(update={"step_ns": step_ns})}),
    )


def test_each_count_of_devices_gets_its_own_fastest_plan() -> None:
    costs, machines = profile(chain(6, 2), micros=(1, 2)), cluster(4)
    sweep = over_devices(question(costs, machines, 8), (4, 1, 2, 2))
    assert [row.asked for row in sweep.rows] == [1, 2, 4]
    for row in sweep.rows:
        alone = solve(question(costs, machines, 8).replace(fix={"devices": row.asked}))
        assert row.plan == alone
        assert row.devices <= row.asked
    rates = [row.samples_per_s for row in sweep.rows]
    assert rates == sorted(rates)


def test_devices_that_a_batch_cannot_fill_are_left_idle() -> None:
    sweep = over_devices(question(profile(chain(1, 2)), cluster(3), 2), (3,))
    assert sweep.row(3).devices == 2


def test_batches_are_doubled_until_that_gains_little() -> None:
    costs = profile(chain(6, 2), micros=(2, 4))
    sweep = over_batches(question(costs, cluster(3)))
    batches = [row.asked for row in sweep.rows]
    assert batches == [2 * 2**i for i in range(len(batches))]
    rates = [row.samples_per_s for row in sweep.rows]
    assert rates[-1] < 1.02 * max(rates[:-1])
    assert sweep.knee in batches
    assert sweep.row(sweep.knee or 0).samples_per_s >= 0.95 * max(rates)


def test_doubling_ends_where_a_step_has_very_many_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.explore.scaling.MOST_MICROS", 2)
    monkeypatch.setattr("planner.show.sweeps.MOST_MICROS", 2)
    costs = profile(chain(6, 2), micros=(2,))
    rows = over_batches(question(costs, cluster(1))).rows
    assert [(row.asked, row.micros) for row in rows] == [(2, 1), (4, 2)]
    sweep = Sweep(over="batch", rows=rows, knee=4)
    assert "A step of it has 2 micro-batches; `--batch` takes larger ones." in text(sweep)


def test_a_batch_without_a_plan_is_a_row_without_one() -> None:
    sweep = over_batches(question(profile(chain(3, 2), micros=(2,)), cluster(1)), (3, 4))
    assert [row.plan is None for row in sweep.rows] == [True, False]
    assert sweep.knee == 4
    assert "nothing fits" in text(sweep)
    assert "yours to judge" in text(sweep)


@pytest.mark.parametrize(
    ("rates", "knee"),
    [
        ({1: 100, 2: 199, 4: 390}, 4),
        ({1: 100, 2: 199, 4: 260}, 2),
        ({8: 100, 16: 101}, 8),
        ({8: 100}, 8),
        ({2: 100, 3: 125, 4: 140}, 3),
        ({}, None),
    ],
)
def test_the_knee_is_where_a_device_stops_bringing_half_of_its_share(
    rates: dict[int, float], knee: int | None
) -> None:
    assert knee_of_devices([row(count, rate) for count, rate in rates.items()]) == knee


def test_the_first_near_best_is_the_least_that_comes_near_the_best() -> None:
    rows = [row(count, rate) for count, rate in {2: 50, 4: 90, 8: 96, 16: 100}.items()]
    assert first_near_best(rows) == 8


def test_the_lemma_is_the_speed_of_a_step_whose_overhead_stays() -> None:
    lemma = Lemma(ratio=0.1, devices=4)
    for devices in (1, 4, 8, 1000):
        work, wasted = 1.0, 0.1
        assert lemma.speed_up(devices) == pytest.approx((work + wasted) / (work / devices + wasted))
    assert lemma.speed_up(8) == pytest.approx(4.89, abs=0.005)
    assert lemma.limit == pytest.approx(11)
    assert lemma.speed_up(10**9) < lemma.limit
    efficient = lemma.efficient_devices(0.8)
    assert lemma.speed_up(1) == 1
    assert (1.1) / (1 + efficient * 0.1) == pytest.approx(0.8)


def test_overhead_is_what_of_a_step_is_not_computing() -> None:
    block = chain(4, 0, equal=True)
    plan = solve(
        Question(
            profile=profile(block),
            cluster=cluster(2),
            batch=8,
            fix={"pipeline": 2, "data": 1},
            schedules=["1f1b"],
        )
    )
    busy = sum(t.forward_ns + t.backward_ns for t in plan.times) * plan.batch.micros / 2
    assert computing_ns(plan) == busy
    lemma = overhead(plan)
    assert lemma is not None
    assert lemma.ratio == (plan.prediction.step_ns - busy) / (2 * busy)


def test_a_free_update_on_one_device_is_no_overhead() -> None:
    costs = profile(chain(2, 0))
    free = replace(costs.optimizer, seconds_per_parameter=Seconds(median=0.0))
    plan: Plan = solve(Question(profile=replace(costs, optimizer=free), cluster=cluster(1), batch=4))
    lemma = overhead(plan)
    assert lemma is not None
    assert lemma.ratio == 0
    assert lemma.limit == lemma.efficient_devices() == float("inf")


def test_a_sweep_as_data_names_the_files_and_the_knee(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("plans") / "4.yaml"
    sweep = over_batches(question(profile(chain(3, 2), micros=(2,)), cluster(1)), (3, 4))
    data = shown_data(sweep, files={4: path})
    assert data["knee"] == 4
    rows = data["rows"]
    assert isinstance(rows, list)
    assert [(r["batch"], r["plan"]) for r in rows] == [(3, None), (4, str(path))]
