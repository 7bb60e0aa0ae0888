from __future__ import annotations

import sys
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.arrays import IntArray
from planner.schedule import Kind, generate
from planner.simulate import Bound, Compiled, compile, duration_vector, node_ends, period
from planner.simulate.longest_path import makespan, neighbour_hops
from planner.simulate.period import _improve
from tests.planner.cases import Case, cases, stage_times
from tests.planner.event_queue import EventQueue

PERIOD = sys.modules["planner.simulate.period"]  # the room exports a function of that name
few = settings(max_examples=200, deadline=None, derandomize=True)


def ends_of_steps(compiled: Compiled, vector: IntArray, steps: int) -> list[int]:
    """When everything of each of so many steps is done."""
    releases = np.zeros(compiled.graph.sources, np.int64)
    done = []
    for _ in range(steps):
        ends = node_ends(compiled, vector, releases)
        releases = ends[compiled.graph.tails]
        done.append(int(releases.max()))
    return done


@few
@given(case=cases(most_workers=4, most_micros=5))
def test_the_rolling_period_is_how_fast_many_steps_follow_each_other(case: Case) -> None:
    compiled = case.compiled(update="rolling")
    found = period(compiled, case.vector)
    done = ends_of_steps(compiled, case.vector, 250 + found.steps)
    assert done[249 + found.steps] - done[249] == found.ns
    assert int(found.counts @ case.vector) == found.ns


@few
@given(case=cases())
def test_the_period_lies_between_the_busiest_worker_and_the_makespan(case: Case) -> None:
    compiled = case.compiled(update="rolling")
    cost = EventQueue(case.schedule, case.hops, case.times)._cost
    found = period(compiled, case.vector)
    assert found.period >= max(sum(map(cost, order)) for order in case.schedule.orders)
    assert found.period <= makespan(compiled, case.vector)
    assert found.period_ns - 1 < found.period <= found.period_ns


@few
@given(case=cases(), seed=st.integers(0, 999))
def test_the_row_of_a_cycle_holds_for_other_costs(case: Case, seed: int) -> None:
    compiled, draw = case.compiled(update="rolling"), Random(seed)
    cycle = period(compiled, case.vector)
    other = np.array([draw.randint(0, 50) for _ in range(compiled.size)])
    assert period(compiled, other).period >= Fraction(int(cycle.counts @ other), cycle.steps)


@few
@given(case=cases())
def test_from_any_bound_below_the_way_leads_up_to_the_period(case: Case) -> None:
    compiled = case.compiled(update="rolling")
    bound: Bound | None = Bound(counts=np.zeros(compiled.size, np.int64), ns=0)
    while bound is not None:
        best, bound = bound, _improve(compiled, case.vector, bound)
        assert bound is None or bound.period > best.period
    expected = period(compiled, case.vector)
    assert best.period == expected.period
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PERIOD,
            "_first_cycle",
            lambda *_: (Bound(counts=0 * expected.counts, ns=0), False),
        )
        assert period(compiled, case.vector).period == expected.period


@few
@given(case=cases())
def test_with_a_barrier_the_period_is_the_makespan(case: Case) -> None:
    compiled = case.compiled(update="barrier")
    assert period(compiled, case.vector).period == makespan(compiled, case.vector)


@few
@given(case=cases())
def test_a_barrier_holds_every_update_back_until_every_gradient_is_in(case: Case) -> None:
    compiled = case.compiled(update="barrier")
    ends = node_ends(compiled, case.vector)
    nodes = compiled.graph.node_of
    ready = max(int(ends[n]) for a, n in nodes.items() if a.kind is not Kind.STEP)
    ready = max([ready, *(int(ends[n]) for n in compiled.graph.sync_nodes.values())])
    for action, node in nodes.items():
        if action.kind is Kind.STEP:
            assert int(ends[node]) >= ready + case.times[action.stage].step_ns


@pytest.mark.parametrize(
    ("family", "workers", "micros", "span", "rolling"),
    [("1f1b", 8, 16, 69, 69), ("gpipe", 4, 8, 33, 33), ("zb-h2", 8, 16, 55, 48), ("zb-h1", 8, 16, 55, 55)],
)
def test_rolling_updates_help_those_that_fill_the_pipeline_without_a_bubble(
    family: str, workers: int, micros: int, span: int, rolling: int
) -> None:
    hops = neighbour_hops(workers)
    compiled = compile(generate(family, workers=workers, micros=micros), hops, update="rolling")
    vector = duration_vector(stage_times(workers), hops)
    assert (makespan(compiled, vector), period(compiled, vector).period) == (span, rolling)


def test_a_slow_channel_can_be_what_limits_the_period() -> None:
    hops = tuple(hop.model_copy(update={"ns": 1000}) for hop in neighbour_hops(2))
    compiled = compile(generate("gpipe", workers=2, micros=6), hops, update="rolling")
    found = period(compiled, duration_vector(stage_times(2), hops))
    assert found.counts[compiled.hop_index(0)] >= 6
