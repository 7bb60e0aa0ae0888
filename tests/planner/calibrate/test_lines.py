"""What devices held beyond the predicted bytes is kept free by later plans, and never takes a margin away."""

from __future__ import annotations

import numpy as np
import pytest

from planner.calibrate import with_corrections
from planner.calibrate.lines import Sample, correction_by
from planner.calibrate.refine import surplus
from planner.cluster import Corrections, MemoryCorrection
from planner.errors import BadInput
from planner.milp import Question, solve
from planner.plan import Plan
from planner.timeline import Timeline
from tests.planner.milp.instances import chain, cluster, profile


def ran(seed: int, held: float, start: int = 0) -> tuple[Plan, Timeline]:
    """A plan, and a run whose every rank held `start + held` times what the plan says."""
    plan = solve(
        Question(
            profile=profile(chain(6, seed), scale=1.0 + seed),
            cluster=cluster(2),
            batch=4 * (seed + 1),
            fix={"pipeline": 2},
        )
    )
    peaks = [start + round(held * (m.total - m.margin)) for m in plan.prediction.memory]
    zeros = np.zeros(len(peaks), np.int64)
    samples = Timeline(
        memory_step=zeros, memory_rank=np.arange(len(peaks)), memory_ns=zeros, memory_bytes=np.array(peaks)
    )
    return plan, samples


def test_the_largest_excess_of_any_run_is_kept_free() -> None:
    found = surplus([ran(0, 1.02), ran(1, 1.05), ran(2, 1.10)])
    assert found is not None
    for seed, held in enumerate((1.02, 1.05, 1.10)):
        plan, samples = ran(seed, held)
        said, took = plan.prediction.memory[0], samples.peak_bytes[0]
        assert found.room_bytes(round(took * 0.9)) < said.total - said.margin
    assert found.factor * (1 + found.spread) == pytest.approx(1.10, rel=0.01)


def test_runs_that_measured_no_memory_say_nothing() -> None:
    plan, _ = ran(0, 1.0)
    assert surplus([(plan, Timeline())]) is None


def test_machines_keep_free_what_runs_held_beside_and_never_less_than_they_did() -> None:
    machines = cluster(2, memory=1_000_000)
    assert machines.groups[0].limit_bytes == 1_000_000  # reckoned once, and not carried along
    known = Corrections(
        memory=MemoryCorrection(start_bytes=100_000, factor=1.25, samples=3),
        step_spread=0.1,
        rests_on=("a run",),
    )
    assert [group.limit_bytes for group in with_corrections(machines, known).groups] == [720_000, 720_000]
    less = known.model_copy(update={"memory": MemoryCorrection(factor=0.5, samples=3)})
    assert with_corrections(machines, less).nodes == machines.nodes


def test_a_plan_that_fits_only_by_its_own_bytes_is_not_made_again() -> None:
    costs = profile(chain(6, 1))
    alone = solve(
        Question(profile=costs, cluster=cluster(2), batch=4, fix={"pipeline": 2, "schedule": "1f1b"})
    )
    need = max(m.total - m.margin for m in alone.prediction.memory)
    known = Corrections(memory=MemoryCorrection(factor=1.2, samples=1), step_spread=0.1, rests_on=("a run",))
    tight = with_corrections(cluster(2, memory=round(need * 1.1)), known)
    plan = solve(Question(profile=costs, cluster=tight, batch=4))
    assert all(1.2 * (m.total - m.margin) <= m.limit for m in plan.prediction.memory)


def test_messages_that_take_no_time_by_plan_and_often_none_in_truth_have_a_correction() -> None:
    """A link of one machine may be planned at a nanosecond; that a message waited for once is no fault of the fit."""
    found = correction_by([*[Sample(1.0, 0.0)] * 3, *[Sample(1.0, 41_000.0)] * 2])
    assert found is not None
    assert found.seconds(1e-9) <= 1e-9
    assert found.spread == 20_500


def test_times_that_a_plan_says_nothing_of_are_refused() -> None:
    with pytest.raises(BadInput, match="took 5e\\+06 times as long"):
        correction_by([Sample(1.0, 5e6)] * 2, proportional=True)
