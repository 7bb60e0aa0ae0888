"""What layers cost on shards, where the exhaustive search does not look."""

from __future__ import annotations

import pytest

from planner.cluster import Group, Sum
from planner.cost import GridChoice, Prices, sharded
from planner.milp import Question, solve
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
    plan = solve(
        Question(profile=costs, cluster=machines, batch=1, fix={"spatial": parts, "gather": "l1", **fix})
    )
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


def test_a_layer_keeps_the_new_part_of_what_is_re_split_beside_what_came() -> None:
    """The largest of 4 strips of 7 rows by 4, and of 2 x 2 blocks, are 8 pixels of 2 channels."""
    costs = profile(PLAIN, ((4,), (2, 2)), 0)
    choice, setting = GridChoice((4,), 0, (2, 2), 1), CostKey("", 1, (), "fp32", "eager")
    free = Group(latency_ns=0.0, byte_ns=0.0, sum=Sum(base_ns=(0.0, 0.0), slope_ns=(0.0, 0.0)))
    tables = sharded(costs, setting, choice, Prices(costs.graph)(choice), free, overlap=True)
    own = costs.costs[CostKey("s1", 1, (2, 2), "fp32", "eager")].own_saved_bytes
    assert tables.saved[1, 2] == own + 2 * (8 * 2 * 4)


def test_ranks_that_share_a_sample_stand_side_by_side() -> None:
    plan, _ = planned(3, pipeline=2, schedule="1f1b")
    assert plan.axes.order[-1] == "spatial"
    assert [place.spatial for place in plan.places] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("parts", [2, 3])
def test_a_profile_without_shards_has_no_spatial_shapes(parts: int) -> None:
    plan = solve(Question(profile=profile(PLAIN, (), 0), cluster=cluster(parts), batch=1))
    assert plan.axes.spatial == 1
    assert plan.certificate is not None and plan.certificate.space is not None
    assert plan.certificate.space.grids == ()
