"""Uneven shares: exact for their periods, taken only where they pay, and nothing changes on devices of one speed."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from planner.cluster import Cluster
from planner.milp import Question, solve, uneven
from planner.milp.uneven import fluid_ns, split
from planner.plan import Plan, dump
from planner.simulate import period_of_plan, period_of_replica
from planner.verify import violations
from tests.planner.milp.instances import chain, cluster, profile

COSTS = profile(chain(8, 3, skips=1), micros=(1,), scale=1000)


def mixed(*rates: float) -> Cluster:
    """Returns a cluster with one node for each rate, as a probe would have found them."""
    alike = cluster(len(rates), memory=10_000_000)
    (group,) = alike.nodes
    known = group.rates.model_copy
    nodes = tuple(
        group.model_copy(
            update={"count": 1, "devices_per_node": 1, "rates": known(update={"fp32_flop_per_s": r})}
        )
        for r in rates
    )
    return alike.model_copy(update={"nodes": nodes})


def asked(machines: Cluster, batch: int, **fix: object) -> Question:
    return Question(profile=COSTS, cluster=machines, batch=batch, schedules=("1f1b",), fix=fix)


@pytest.mark.parametrize("seed", range(50))
def test_shares_are_the_best_of_all(seed: int) -> None:
    draw = Random(seed)
    kinds = [draw.choice([1.0, 1.7, 3.0]) for _ in range(draw.randint(1, 4))]
    start, total = draw.uniform(0, 4), len(kinds) + draw.randint(0, 9)

    def period(share: int, kind: float) -> float:
        return kind * (start + share)

    def longest(shares: tuple[int, ...]) -> float:
        return max(period(share, kind) for share, kind in zip(shares, kinds, strict=True))

    every = (s for s in product(range(1, total + 1), repeat=len(kinds)) if sum(s) == total)
    found = split(total, kinds, period)
    assert sum(found) == total and min(found) >= 1
    assert longest(found) == pytest.approx(min(map(longest, every)))


@pytest.fixture(scope="module")
def halves() -> Plan:
    return solve(asked(mixed(2.0, 2.0, 1.0, 1.0), 16, pipeline=1, micro=1))


def test_slow_replicas_get_smaller_shares(halves: Plan) -> None:
    assert sorted(halves.batch.shares) == [3, 3, 5, 5]
    assert sum(halves.batch.shares) == 16 == halves.batch.samples
    equal = solve(asked(mixed(1.0, 1.0, 1.0, 1.0), 16, pipeline=1, micro=1))
    assert not equal.batch.shares and not equal.replica_times


def test_the_step_is_that_of_the_slowest_replica_with_its_own_times(halves: Plan) -> None:
    assert halves.prediction.step_ns == period_of_plan(halves)
    assert halves.prediction.step_ns == max(period_of_replica(halves, r) for r in range(4))
    (slow,) = halves.replica_times
    assert slow.replicas == (2, 3)
    assert slow.times[0].forward_ns == pytest.approx(2 * halves.times[0].forward_ns, abs=2)


def test_a_plan_with_uneven_shares_holds_and_its_bound_is_below_every_plan(halves: Plan) -> None:
    machines = mixed(2.0, 2.0, 1.0, 1.0)
    assert violations(halves, profile=COSTS, cluster=machines) == []
    assert halves.certificate is not None
    assert halves.certificate.bound_ns <= halves.prediction.step_ns
    free = solve(asked(machines, 16))
    assert fluid_ns(asked(machines, 16).instance()) <= free.prediction.step_ns <= halves.prediction.step_ns


def test_devices_of_one_speed_keep_equal_shares_and_their_plan_to_the_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = mixed(2.0, 2.0)
    assert not solve(asked(machines, 8)).batch.shares
    found = dump(solve(asked(machines, 8, pipeline=1, data=2, micro=1)))
    with monkeypatch.context() as patch:
        patch.setattr(uneven, "split", unasked)
        assert dump(solve(asked(machines, 8, pipeline=1, data=2, micro=1))) == found
    assert "shares" not in found and "replica_times" not in found


def unasked(*_: object) -> tuple[int, ...]:
    raise AssertionError("nothing is shared out among devices of one speed")


def test_uneven_shares_that_gain_nothing_are_not_taken() -> None:
    plan = solve(asked(mixed(2.0, 1.9), 2, pipeline=1, data=2, micro=1))
    assert not plan.batch.shares
