"""What conversions take on a cluster, as the ranks of a run do them."""

from __future__ import annotations

import pytest

from planner.cluster import Cluster, Correction, Corrections, Link, Links, NodeGroup
from planner.group import MeshOnCluster
from planner.layout import Collective
from planner.sums import SumRate

LATENCY_S, BYTES_PER_S, SIZE = 1e-3, 1e9, 4_000_000


def on(mesh: tuple[int, ...], device: str = "cpu", **link: dict[str, SumRate]) -> MeshOnCluster:
    wire = Link(latency_s=LATENCY_S, bandwidth_bytes_per_s=BYTES_PER_S, **link)
    memory = 2**30 if device == "cpu" else None
    nodes = (NodeGroup(count=1, device=device, devices_per_node=8, memory_bytes=memory),)
    return MeshOnCluster(mesh=mesh, cluster=Cluster(name="one node", nodes=nodes, links=Links(node=wire)))


@pytest.mark.parametrize(
    ("collective", "rounds", "share"),
    [("gather", 1, 3 / 4), ("scatter", 1, 3 / 4), ("reduce", 2, 3 / 2), ("exchange", 1, 3 / 16)],
)
def test_between_hosts_all_ranks_send_at_once(collective: Collective, rounds: int, share: float) -> None:
    expected = rounds * LATENCY_S + share * SIZE / BYTES_PER_S
    assert on((4,)).ns(collective, (0,), SIZE) == pytest.approx(expected * 1e9)


def test_gpus_pass_parts_on_in_a_ring() -> None:
    expected = 3 * LATENCY_S + 3 / 4 * SIZE / BYTES_PER_S
    assert on((4,), "H100-80GB").ns("gather", (0,), SIZE) == pytest.approx(expected * 1e9)


def test_a_round_between_hosts_has_the_rate_of_the_direct_sum_where_it_was_measured() -> None:
    slow = SumRate(latency_s=3e-3, bandwidth_bytes_per_s=5e8)
    machine = on((4,), sums={"direct": slow, "ring": SumRate(latency_s=1e-4, bandwidth_bytes_per_s=1e10)})
    assert machine.ns("reduce", (0,), SIZE) == pytest.approx((2 * 3e-3 + 1.5 * SIZE / 5e8) * 1e9)


def test_runs_correct_conversions_by_what_conversions_took_and_not_by_sums_of_gradients() -> None:
    plain = on((4,))
    assert plain.cluster is not None
    taught = Corrections(
        sum=Correction(start_s=1.0, factor=9.0, samples=1),
        conversion=Correction(factor=2.5, samples=1),
        step_spread=0.1,
        rests_on=("a run",),
    )
    cluster = plain.cluster.model_copy(update={"fitted": taught})
    found = MeshOnCluster(mesh=(4,), cluster=cluster)
    assert found.ns("gather", (0,), SIZE) == pytest.approx(2.5 * plain.ns("gather", (0,), SIZE))


def test_what_goes_round_between_hosts_goes_from_rank_to_rank() -> None:
    assert (on((4,)).turns(0), on((4,), "H100-80GB").turns(0)) == (3, 1)
