"""What the simulator is handed and cannot be: refused, never cut to fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.errors import BadInput, BadPlan
from planner.plan import yaml as plan_yaml
from planner.schedule import Action, Kind, Schedule, generate
from planner.simulate import Compiled, StageBytes, compile, makespans, period, simulate, simulate_plan
from planner.simulate.longest_path import makespan, neighbour_hops

PLAN = Path(__file__).parents[3] / "plans" / "mlp-chimera.yaml"
HOPS = neighbour_hops(2)


def compiled(workers: int = 2, micros: int = 2) -> Compiled:
    schedule = generate("1f1b", workers=workers, micros=micros)
    return compile(schedule, neighbour_hops(workers), update="rolling")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, r"takes -1 \(allowed: whole nanoseconds from 0"),
        (1 << 61, r"takes 2305843009213693952 \(allowed: whole nanoseconds from 0"),
        (1 << 70, r"durations of type object \(allowed: whole nanoseconds within 64 bits"),
        (0.5, r"durations of type float64"),
        (float("nan"), r"durations of type float64"),
        ("a", r"durations of type <U"),
    ],
)
@pytest.mark.parametrize("size", [(2, 2), (64, 4)])
def test_a_duration_is_a_whole_number_whose_sums_fit(wrong: int, message: str, size: tuple[int, int]) -> None:
    one = compiled(*size)
    vector = [1] * (one.size - 1) + [wrong]
    for ask in (makespan, period, simulate):
        with pytest.raises(BadInput, match=message):
            ask(one, vector)


def test_the_longest_durations_allowed_are_added_up_exactly() -> None:
    one = compiled()
    longest = ((1 << 62) - 1) // len(one.graph.cost)
    assert makespan(one, [longest] * one.size) % longest == 0
    assert period(one, [longest] * one.size).ns % longest == 0


def test_one_vector_is_no_matrix_and_a_matrix_no_vector() -> None:
    one = compiled()
    with pytest.raises(BadInput, match=r"2 x 16 durations"):
        makespan(one, np.ones((2, one.size), np.int64))
    with pytest.raises(BadInput, match=r"16 durations"):
        makespans(one, np.ones(one.size, np.int64))
    with pytest.raises(BadInput, match=r"F of stage 0 takes -1 "):
        makespans(one, np.full((2, one.size), -1, np.int64))


def test_bytes_are_given_for_every_stage_and_worker() -> None:
    one = compiled()
    with pytest.raises(BadInput, match=r"memory: bytes of 1 stages \(allowed: 2\)"):
        simulate(one, [1] * one.size, [StageBytes(saved=1)])
    with pytest.raises(BadInput, match=r"static_bytes: bytes of 1 workers \(allowed: 2\)"):
        simulate(one, [1] * one.size, [StageBytes(saved=1)] * 2, static_bytes=[1])


def test_no_steps_are_no_timeline() -> None:
    one = compiled()
    with pytest.raises(BadInput, match=r"0 steps"):
        simulate(one, [1] * one.size, steps=0)


def test_options_by_another_name_are_refused() -> None:
    schedule = generate("1f1b", workers=2, micros=2)
    with pytest.raises(BadInput, match=r"queueing is 'lane' \(allowed: channel, card, stream, none\)"):
        compile(schedule, HOPS, queueing="lane")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"update is 'never' \(allowed: rolling, barrier\)"):
        compile(schedule, HOPS, update="never")  # type: ignore[arg-type]


def test_a_stream_ranks_every_message() -> None:
    with pytest.raises(BadInput, match=r"a ranking of 0 messages \(allowed: each of the schedule's 4"):
        compile(generate("1f1b", workers=2, micros=2), HOPS, queueing="stream")


@pytest.mark.parametrize("place", [(), ((),), ((0, 1), (0,))])
def test_pipes_have_stages_all_as_many(place: tuple[tuple[int, ...], ...]) -> None:
    schedule = Schedule(family="x", place=place, pipe_of=(0,), orders=((Action(Kind.F, 0),), ()))
    with pytest.raises(BadInput, match=r"place: pipes of .* stages"):
        compile(schedule, ())


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("1SYNC' ", "", r"worker 0 never does 1SYNC'(.|\n)*\[0STEP\]"),
        ("0F0 ", "0F9 ", r"0F9 names no micro-batch(.|\n)*\[0F9\]"),
        ("1SYNC' 0B2", "1SYNC' 1STEP' 0B2", r"deadlock(.|\n)*\[1STEP'\]"),  # updates are behind a barrier
    ],
)
def test_a_plan_whose_orders_are_no_schedule_is_drawn_and_refused(
    right: str, wrong: str, message: str
) -> None:
    plan = plan_yaml.load(PLAN)
    first, *others = plan.schedule.orders
    changed = first.replace(right, wrong, 1)
    if wrong.endswith("0B2"):
        changed = changed.replace("0SYNC 1STEP'", "0SYNC")
    orders = (changed, *others)
    bad = plan.model_copy(update={"schedule": plan.schedule.model_copy(update={"orders": orders})})
    with pytest.raises(BadPlan, match=message):
        simulate_plan(bad)
