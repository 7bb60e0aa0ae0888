"""What layers cost on shards, where the exhaustive search does not look."""

from __future__ import annotations

import pytest

from planner.milp.solve import solve
from planner.plan import Plan
from planner.profile import CostKey
from planner.verify import violations
from tests.planner.milp.images import Images, profile
from tests.planner.milp.instances import cluster

PLAIN = Images(rows=7, columns=4, channels=2, kernels=(1,), skips=(None,), weights=(100,))


def planned(parts: int, **fix: object) -> tuple[Plan, float]:
    """With the time that its first layer was profiled at on a shard."""
    costs = profile(PLAIN, ((parts,),), 0)
    machines = cluster(2 * parts, latency_s=1e-9)
    plan = solve(costs, machines, batch=1, fix={"spatial": parts, "gather": "l1", **fix})
    assert violations(plan, profile=costs, cluster=machines) == []
    row = costs.costs[CostKey("s0", 1, (parts,), "fp32", "eager")]
    return plan, row.forward.median * 1e9


def test_the_largest_shard_counts_where_another_one_was_profiled() -> None:
    """Of 7 rows the last of 3 ranks has 3, the one in the middle 2."""
    plan, profiled_ns = planned(3, pipeline=2, schedule="1f1b")
    assert plan.times[0].forward_ns == round(profiled_ns * 3 / 2)
    (hop,) = (hop for hop in plan.hops if hop.direction == "act")
    assert hop.bytes == 3 * 4 * 2 * 4


def test_even_shards_cost_what_was_profiled() -> None:
    plan, profiled_ns = planned(7, pipeline=2, schedule="1f1b")
    assert plan.times[0].forward_ns == round(profiled_ns)


def test_ranks_that_share_a_sample_stand_side_by_side() -> None:
    plan, _ = planned(3, pipeline=2, schedule="1f1b")
    assert plan.axes.order[-1] == "spatial"
    assert [place.spatial for place in plan.places] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("parts", [2, 3])
def test_a_profile_without_shards_has_no_spatial_shapes(parts: int) -> None:
    plan = solve(profile(PLAIN, (), 0), cluster(parts), batch=1)
    assert plan.axes.spatial == 1
    assert plan.certificate is not None and "cut alike" not in plan.certificate.scope
