"""Sizes of jobs: the knapsack equals the program and exhaustion, keeps every limit, and moves only what pays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from planner.errors import BadInput
from planner.scavenge import Curve, ElasticJob, Holding, Limit, decide, decide_by_milp, gain, knapsack
from tests.draws import part


def drawn(seed: int) -> tuple[list[Holding], int, float]:
    """Draws up to four jobs with up to four sizes each, what they hold, and idle nodes enough for that."""
    draw = Random(seed)
    holdings, held = [], 0
    for j in range(draw.randint(1, 4)):
        sizes = draw.sample(range(1, 9), draw.randint(1, 4))
        curve = Curve(rates={size: draw.uniform(0.5, 1.0) * size**0.8 for size in sizes})
        job = ElasticJob(name=f"job{j}", curve=curve, weight=draw.choice([1.0, 1.0, 2.5]))
        broken = draw.random() < 0.2
        nodes = draw.randint(0, 6) if broken else draw.choice([0, *sizes])
        worth = draw.uniform(0.5, 5.0) if broken else job.worth(nodes)
        rest_s = draw.choice([0.0, 0.0, 8.0, 17.0]) * (nodes > 0)
        holdings.append(Holding(job=job, nodes=nodes, worth=worth, broken=broken, rest_s=rest_s))
        held += nodes
    return holdings, held + draw.randint(0, 8), draw.choice([5.0, 30.0, 120.0])


def total(holdings: list[Holding], sizes: Sequence[int], look_ahead_s: float) -> float:
    return sum(gain(h, size, look_ahead_s) for h, size in zip(holdings, sizes, strict=True))


def best_of_all(holdings: list[Holding], idle: int, look_ahead_s: float) -> float:
    every = product(*([0, *holding.job.curve.rates] for holding in holdings))
    return max(total(holdings, sizes, look_ahead_s) for sizes in every if sum(sizes) <= idle)


@pytest.mark.parametrize("hundred", range(5))
def test_the_knapsack_equals_exhaustion_on_500_instances(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        holdings, idle, ahead = drawn(seed)
        sizes = knapsack(holdings, idle, ahead)
        assert sum(sizes) <= idle, seed
        assert all(n == 0 or n in h.job.curve.rates for n, h in zip(sizes, holdings, strict=True)), seed
        assert total(holdings, sizes, ahead) == pytest.approx(best_of_all(holdings, idle, ahead), rel=1e-9), (
            seed
        )


def test_the_program_equals_the_knapsack() -> None:
    for seed in part(range(500), 25):  # benchmarks/scavenge.py has 500 in one run
        holdings, idle, ahead = drawn(seed)
        sizes = [nodes for nodes, _ in decide_by_milp(holdings, {"": idle}, ahead)]
        assert sum(sizes) <= idle
        own = total(holdings, knapsack(holdings, idle, ahead), ahead)
        assert total(holdings, sizes, ahead) == pytest.approx(own, rel=1e-6), seed


CURVE = Curve(rates={1: 1.0, 2: 1.9, 4: 3.5, 8: 6.0})


def test_nothing_that_trains_changes_when_a_change_costs_very_much() -> None:
    dear = ElasticJob(name="a", curve=CURVE, up_s=1e9, down_s=1e9)
    holdings = [Holding(job=dear, nodes=2, worth=1.9), Holding(job=dear, nodes=1, worth=1.0)]
    assert knapsack(holdings, 100) == [2, 1]


def test_jobs_that_are_alike_do_not_swap_their_sizes() -> None:
    free = ElasticJob(name="a", curve=CURVE, up_s=0.0, down_s=0.0)
    for sizes in ([1, 2, 4], [4, 2, 1], [2, 4, 1]):
        holdings = [Holding(job=free, nodes=n, worth=free.worth(n)) for n in sizes]
        assert knapsack(holdings, 7) == sizes


def test_a_job_that_is_in_a_pause_pays_only_for_what_another_one_is_longer() -> None:
    job = ElasticJob(name="a", curve=CURVE)
    still, paused = (Holding(job=job, nodes=4, worth=3.5, rest_s=rest_s) for rest_s in (0.0, 15.0))
    assert gain(still, 8, 100.0) == 100 * 6.0 - 18 * 3.5
    assert gain(paused, 8, 100.0) == 100 * 6.0 - 3 * 3.5
    assert gain(paused, 2, 100.0) == 100 * 1.9  # no pause becomes shorter by a change
    assert knapsack([still], 8, 20.0) == [4] and knapsack([paused], 8, 20.0) == [8]


def test_a_change_pays_only_if_it_has_the_time_to() -> None:
    job = ElasticJob(name="a", curve=CURVE)
    held = [Holding(job=job, nodes=4, worth=3.5)]
    # 8 nodes bring 2.5 a second more, and 18 s without 3.5 cost 63: worth it from 25.2 s on.
    assert knapsack(held, 8, 25.0) == [4]
    assert knapsack(held, 8, 25.5) == [8]


def test_no_idle_nodes_and_no_jobs_have_an_answer() -> None:
    assert knapsack([Holding(job=ElasticJob(name="a", curve=CURVE))], 0) == [0]
    assert knapsack([], 5) == []


def test_a_weight_moves_nodes_to_the_job_that_has_it() -> None:
    jobs = [ElasticJob(name="a", curve=CURVE), ElasticJob(name="b", curve=CURVE, weight=9.0)]
    assert knapsack([Holding(job=job) for job in jobs], 9) == [1, 8]


def test_a_job_stays_in_one_rack_and_a_limit_of_an_administrator_holds() -> None:
    jobs = [ElasticJob(name=name, curve=CURVE) for name in "ab"]
    holdings = [Holding(job=job) for job in jobs]
    racks = decide(holdings, {"left": 5, "right": 3})
    assert sorted(racks) == [(2, "right"), (4, "left")]
    limited = decide(holdings, 8, limits=[Limit(jobs=frozenset("ab"), most=3)])
    assert sorted(nodes for nodes, _ in limited) == [1, 2]
    assert decide(holdings, 8) == decide_by_milp(holdings, {"": 8})


def test_a_kind_of_node_may_have_a_curve_of_its_own() -> None:
    job = ElasticJob(name="a", curve=CURVE, of_pool={"fast": Curve(rates={1: 5.0})})
    assert decide([Holding(job=job)], {"slow": 4, "fast": 4}) == [(1, "fast")]


def test_a_limit_on_no_job_is_refused() -> None:
    limit = Limit(jobs=frozenset(["b"]), most=3)
    with pytest.raises(BadInput, match=r"limits b, which is no job \(allowed: a\)"):
        decide([Holding(job=ElasticJob(name="a", curve=CURVE))], 8, limits=[limit])
