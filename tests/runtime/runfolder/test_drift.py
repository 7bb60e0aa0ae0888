"""A run that leaves the error bars of its plan says so, once, and names what they rest on."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.plan import Plan, SampleReading
from planner.plan import yaml as plan_yaml
from planner.timeline import WARM_UP_STEPS
from runtime.runfolder import JUDGED_STEPS, DriftWatch, outside_bars, usual_s, waiting


def plan(low_ns: int = 9_000_000, high_ns: int = 12_000_000) -> Plan:
    loaded = plan_yaml.load(Path("plans/mlp-chimera.yaml"))
    bars = {"step_ns": 10_000_000, "low_ns": low_ns, "high_ns": high_ns}
    return loaded.model_copy(update={"prediction": loaded.prediction.model_copy(update=bars)})


def test_steps_within_the_bars_are_passed_over_and_those_outside_are_named_with_the_bars() -> None:
    assert outside_bars(plan(), 11e6) == ""
    said = outside_bars(plan(), 20e6)
    assert "20 ms" in said and "9 ms to 12 ms" in said and "the profile alone" in said


def test_what_to_do_depends_on_whether_the_machine_had_other_work() -> None:
    assert "`--replan-from runs/mine`" in outside_bars(plan(), 20e6, run="runs/mine")
    busy = outside_bars(plan(), 20e6, run="runs/mine", busy=True)
    assert "idle" in busy and "replan" not in busy


def test_a_plan_without_bars_is_not_left() -> None:
    assert outside_bars(plan(10_000_000, 10_000_000), 20e6) == ""


def test_a_run_says_it_once_and_not_by_its_warm_up() -> None:
    watch = DriftWatch(plan())
    said = [watch.step(seconds) for seconds in [0.5] * WARM_UP_STEPS + [0.0105] * (JUDGED_STEPS - 1)]
    assert not any(said) and watch.step(0.0105) == ""
    said = [watch.step(0.03) for _ in range(2 * JUDGED_STEPS)]
    assert sum(map(bool, said)) == 1


def test_reading_that_is_known_belongs_to_the_bars_unless_readers_hide_it() -> None:
    batch = plan().batch
    each = 8_000_000 // (batch.micro * batch.micros)  # 8 ms a step
    slow = plan().model_copy(update={"data": SampleReading(sample_ns=each)})
    assert outside_bars(slow, 19e6) == "" and "9 ms to 20 ms" in outside_bars(slow, 30e6)
    assert "9 ms to 12 ms" in outside_bars(slow, 19e6, workers=1)


def test_a_run_that_waits_for_samples_says_so_once_with_the_figure() -> None:
    watch = DriftWatch(plan())
    said = [watch.step(0.010, 0.004) for _ in range(WARM_UP_STEPS + 2 * JUDGED_STEPS)]
    assert sum(map(bool, said)) == 1
    assert "ranks wait for samples 4 ms of 10 ms a step (40%); more readers (--data-workers auto)" in max(
        said
    )
    assert waiting([(0.010, 0.0004)] * 9) == "" and waiting([]) == ""


def test_steps_that_wait_for_several_readers_in_turn_take_their_mean_and_others_their_median() -> None:
    turns = [(0.055, 0.048), (0.048, 0.042), (0.007, 0.001)] * 4
    assert usual_s([took_s for took_s, _ in turns], turns) == pytest.approx(0.11 / 3)
    assert usual_s([0.01, 0.01, 0.1], [(0.01, 0.0), (0.01, 0.0), (0.1, 0.0)]) == 0.01
