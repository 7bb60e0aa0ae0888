"""Replays: hand-made logs have hand-computed answers, and every node-second and piece of work is found again."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest

from planner.scavenge import (
    Curve,
    ElasticJob,
    IdleLog,
    Policy,
    Spell,
    dedicated_rate,
    equal_share,
    log_of_spells,
    planned,
    repeated,
    replay,
)

JOB = ElasticJob(name="a", curve=Curve(rates={1: 1.0, 2: 1.8, 3: 2.4}))


def drawn_log(seed: int, nodes: int = 12, seconds: float = 20_000.0) -> IdleLog:
    draw, spells = Random(seed), list[Spell]()
    for node in range(nodes):
        now = draw.expovariate(1 / 900)
        while now < seconds:
            end = now + draw.expovariate(1 / 600)
            spells.append(Spell(node, now, end))
            now = end + draw.expovariate(1 / 900)
    return log_of_spells([f"n{i}" for i in range(nodes)], spells, 0.0, seconds)


FIVE = log_of_spells("abc", [Spell(0, 0, 200), Spell(1, 0, 300), Spell(2, 100, 400)], 0.0, 400.0)


def test_a_log_of_five_events_has_the_answer_of_a_hand() -> None:
    found = replay(FIVE, [JOB], equal_share)
    # Two nodes less 18 s, three less 18 s, two less 12 s after the first is taken, one less 12 s.
    assert found.work == pytest.approx(82 * 1.8 + 82 * 2.4 + 88 * 1.8 + 88 * 1.0)
    assert found.lost_to_rescaling == pytest.approx(18 * 1.8 + 18 * 2.4)
    assert found.lost_to_preemption == pytest.approx(12 * 1.8 + 12 * 1.0)
    assert found.dedicated == pytest.approx(400 * 1.8)
    assert (found.rescales, found.preemptions) == (2, 2)
    assert found.unused_node_s == 0.0


TWO = log_of_spells(
    "abc", [Spell(0, 0, 500), Spell(1, 0, 200), Spell(1, 300, 500), Spell(2, 100, 500)], 0.0, 500.0
)


def test_two_jobs_on_a_log_of_five_events_have_the_answer_of_a_hand() -> None:
    linear = ElasticJob(name="b", curve=Curve(rates={1: 1.0, 2: 2.0}), up_s=20.0, down_s=10.0)
    single = ElasticJob(name="c", curve=Curve(rates={1: 0.9}), up_s=20.0, down_s=10.0)
    found = replay(TWO, [linear, single], planned(120.0))
    # In 120 s, two nodes bring b 240, and one each 120 + 108; at 100 c takes the third. At 200 b loses one of two: the
    # node of c would bring it 240 - 20 * 2, but one each bring 120 - 10 * 2 + 108. At 300 growing brings 120 - 20 * 1.
    assert [(x.job, x.begin_s, x.end_s, len(x.nodes), x.pause_s) for x in sorted(found.spans)] == [
        ("b", 0.0, 200.0, 2, 20.0),
        ("b", 200.0, 300.0, 1, 10.0),
        ("b", 300.0, 500.0, 2, 20.0),
        ("c", 100.0, 500.0, 1, 20.0),
    ]
    assert found.work == pytest.approx(180 * 2.0 + 90 * 1.0 + 180 * 2.0 + 380 * 0.9)
    assert found.lost_to_rescaling == pytest.approx(20 * 2.0 + 20 * 2.0 + 20 * 0.9)
    assert found.lost_to_preemption == pytest.approx(10 * 1.0)
    assert (found.rescales, found.preemptions) == (3, 1)
    assert found.training_node_s == pytest.approx(180 * 2 + 90 + 180 * 2 + 380)
    assert found.pausing_node_s == pytest.approx(20 * 2 + 10 + 20 * 2 + 20)
    assert found.unused_node_s == 0.0


def test_free_rescaling_loses_nothing() -> None:
    found = replay(FIVE, [JOB], planned(), free=True, again_s=60.0)
    assert found.work == pytest.approx(100 * (1.8 + 2.4 + 1.8 + 1.0))
    assert found.lost_to_rescaling == found.lost_to_preemption == found.pausing_node_s == 0.0


def test_work_since_the_last_checkpoint_is_done_again() -> None:
    once, again = (replay(FIVE, [JOB], equal_share, again_s=seconds) for seconds in (0.0, 30.0))
    assert once.work - again.work == pytest.approx(30 * (2.4 + 1.8))
    assert again.lost_to_preemption - once.lost_to_preemption == pytest.approx(30 * (2.4 + 1.8))


def test_a_look_ahead_that_is_short_leaves_a_job_as_it_is() -> None:
    # Growing from two nodes to three costs 18 s at 1.8, and 10 s at 2.4 do not bring that back.
    found = replay(FIVE, [JOB], planned(10.0))
    assert found.spans[0].nodes == (0, 1) and found.spans[0].end_s == 200.0
    assert found.unused_node_s == pytest.approx(100 + 100)  # nor is a single node left for two


def test_dedicated_nodes_between_two_whole_numbers_have_a_rate_between() -> None:
    assert dedicated_rate([JOB], 2.5) == pytest.approx(2.1)
    assert dedicated_rate([JOB, JOB], 2.0) == pytest.approx(2.0)


@pytest.mark.parametrize("policy", [equal_share, planned(30.0), planned(120.0)])
@pytest.mark.parametrize("seed", range(4))
def test_node_time_and_work_are_conserved(seed: int, policy: Policy) -> None:
    log, curve = drawn_log(seed), Curve(rates={1: 1.0, 2: 1.9, 4: 3.4, 8: 5.5})
    jobs = repeated([ElasticJob(name="x", curve=curve), ElasticJob(name="y", curve=JOB.curve, weight=2.0)], 5)
    found = replay(log, jobs, policy)
    held = sum((span.end_s - span.begin_s) * len(span.nodes) for span in found.spans)
    assert found.training_node_s + found.pausing_node_s == pytest.approx(held, abs=1e-3)
    assert held + found.unused_node_s == pytest.approx(log.idle_node_s, abs=1e-3)
    by_name = {job.name: job for job in jobs}
    work = sum(
        (span.end_s - span.begin_s - span.pause_s) * by_name[span.job].worth(len(span.nodes))
        for span in found.spans
    )
    assert found.work == pytest.approx(work, abs=1e-3)
    _nobody_is_where_it_may_not_be(log, found.spans)


def _nobody_is_where_it_may_not_be(log: IdleLog, spans: object) -> None:
    assert isinstance(spans, tuple)
    uses = defaultdict[int, list[tuple[float, float]]](list)
    for span in spans:
        for node in span.nodes:
            uses[node].append((span.begin_s, span.end_s))
    for node, times in uses.items():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(times))), node
        idle = [spell for spell in log.spells if spell.node == node]
        assert all(any(x.begin_s <= a and b <= x.end_s for x in idle) for a, b in times), node


@pytest.mark.parametrize("seed", range(3))
def test_the_decision_is_between_equal_shares_and_the_ceiling(seed: int) -> None:
    log, jobs = drawn_log(seed), repeated([JOB], 4)
    equal, ours, ceiling = (
        replay(log, jobs, equal_share),
        replay(log, jobs, planned()),
        replay(log, jobs, planned(), free=True),
    )
    assert equal.efficiency - 0.005 <= ours.efficiency <= ceiling.efficiency
