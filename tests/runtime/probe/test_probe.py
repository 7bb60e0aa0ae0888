"""Measured machines become a cluster that can be planned for, and what is slow among them is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planner.cluster import HOST_PROCESS_BYTES, device_margin, host_margin
from planner.cluster import cluster as clusters
from planner.errors import BadInput
from runtime.probe import Found, local, probe
from runtime.probe.measurements import (
    Number,
    ProbedDevice,
    ProbedLink,
    ProbedSum,
    Slowed,
    Together,
    beside,
    pairs,
)
from runtime.world import join
from tests.planner.plan_examples import parse_cluster
from tests.pool import Pool


def device(rate: float = 1e12, kind: str = "cpu") -> ProbedDevice:
    return ProbedDevice(
        kind=kind, memory_bytes=8 * 10**9, flop_per_s=Number(rate, 1e9), copy_bytes_per_s=Number(2e10, 1e8)
    )


def wire(b: int, rate: float, *, within: bool) -> ProbedLink:
    return ProbedLink(
        a=0, b=b, within_node=within, latency_s=Number(2e-5, 1e-6), bytes_per_s=Number(rate, 1e7)
    )


def found(rates: tuple[float, ...] = (1e12,) * 4, wires: tuple[float, ...] = (4e9, 1e9, 1e9)) -> Found:
    hosts = ("n1", "n1", "n2", "n2")
    return Found(
        hosts=hosts,
        devices=tuple(device(rate) for rate in rates),
        wires=tuple(wire(b + 1, rate, within=b == 0) for b, rate in enumerate(wires)),
        sums=(ProbedSum(ranks=(0, 1), bytes=8, seconds=Number(1e-3, 0.0)),),
    )


def test_what_was_measured_is_a_cluster_that_can_be_read_back() -> None:
    made = probe.cluster_of(found(), "lab", 16, ["H100-80GB"])
    again = parse_cluster(clusters.dump(made))
    assert again == made
    group = again.nodes[0]
    assert (group.count, group.devices_per_node, group.memory_bytes) == (16, 2, 4 * 10**9)
    assert again.links.node is not None and again.links.rack is not None
    assert again.links.node.bandwidth_bytes_per_s == 4e9
    assert again.links.rack.bandwidth_bytes_per_s == 1e9


def test_hosts_leave_memory_to_their_processes_and_gpus_to_their_drivers() -> None:
    group = probe.cluster_of(found(), "lab", 1, ["cpu"]).nodes[0]
    assert group.margin_bytes == host_margin(group.capacity_bytes) > HOST_PROCESS_BYTES
    taken = [
        replace(each, kind="H100-80GB", memory_bytes=80 * 10**9, taken_bytes=10**9)
        for each in found().devices
    ]
    group = probe.cluster_of(replace(found(), devices=tuple(taken)), "lab", 1, ["H100-80GB"]).nodes[0]
    assert group.margin_bytes == device_margin(80 * 10**9, 10**9) > 2 * 10**9


@pytest.mark.parametrize(
    ("groups", "factor", "behind"),
    [
        (((0, 2), (1, 3)), 1.9, None),  # one card for both: they take turns
        (((0, 2), (1, 3)), 1.1, 1),
        (((0, 1), (2, 3)), 1.1, None),  # nobody has used the network
        (((0, 2),), 1.0, None),  # nor has every device
    ],
)
def test_devices_that_do_not_slow_each_other_have_cards_of_their_own(
    groups: tuple[tuple[int, ...], ...], factor: float, behind: int | None
) -> None:
    both = Together(groups=groups, bytes=8, alone_s=Number(1.0, 0.0), together_s=Number(factor, 0.0))
    made = probe.cluster_of(replace(found(), together=(both,)), "lab", 16, [])
    assert made.nodes[0].devices_per_card == behind
    assert parse_cluster(clusters.dump(made)) == made


def test_a_slow_device_and_a_slow_link_are_named() -> None:
    assert probe.slow(found()) == []
    assert probe.slow(found(rates=(1e12, 1e12, 4e11, 1e12))) == [
        "rank 2 on n2 multiplies at 40% of the middle rate"
    ]
    rows = probe.slow(found(wires=(4e9, 2.0e9, 2.0e8)))
    assert rows == ["ranks 0 and 3 (n1 to n2) talk at 18% of the middle rate"]


def test_a_device_is_held_against_those_of_its_kind() -> None:
    rows = found()
    mixed = replace(rows, devices=(device(), device(), device(4e11, "old"), device(4.1e11, "old")))
    assert probe.slow(mixed) == []
    slow = replace(device(), copy_bytes_per_s=Number(5e9, 1e7))
    assert probe.slow(replace(rows, devices=(device(), device(), slow, device()))) == [
        "rank 2 on n2 copies at 25% of the middle rate"
    ]


def test_every_host_talks_to_every_other_and_neighbours_where_there_are_many() -> None:
    assert pairs(["a", "a", "b", "c"]) == [(0, 1), (0, 2), (0, 3), (2, 3)]
    assert pairs([f"n{i}" for i in range(20)]) == [(i, i + 1) for i in range(19)]


def test_groups_that_sum_at_once_share_no_rank() -> None:
    assert beside(["a"] * 3) == []
    assert beside(["a"] * 4) == [((0, 1), (2, 3))]
    assert beside(["a", "b", "c"]) == []
    assert beside(["a", "a", "b", "b"]) == [((0, 1), (2, 3)), ((0, 2), (1, 3))]


def test_what_things_at_once_do_to_each_other_is_told() -> None:
    both = Together(groups=((0, 2), (1, 3)), bytes=8, alone_s=Number(1.0, 0.0), together_s=Number(1.9, 0.0))
    rows = probe.shared(replace(found(), together=(both,), slowed=Slowed(bytes=8, factor=Number(1.25, 0.05))))
    assert rows == [
        "2 groups of 2 ranks that sum at once take 1.90 times as long as one alone (0,2; 1,3)",
        "matrix products take 1.25 (+-0.05) times as long while all ranks sum",
    ]


def probed(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> None:
    import torch

    world = join(rendezvous, rank, ranks, torch.device("cpu"))
    probe.probe(world, Path(folder) / "probe.json", repeats=2)
    world.barrier()
    world.close()


def test_four_processes_measure_each_other(pool: Pool, tmp_path: Path) -> None:
    assert probe.now(tmp_path / "probe.json") is None
    pool.run("tests.runtime.probe.test_probe:probed", 4, folder=str(tmp_path))
    have = probe.read(tmp_path / "probe.json")
    assert len(have.devices) == len(have.hosts) == 4
    assert [(w.a, w.b, w.within_node) for w in have.wires] == [(0, 1, True), (0, 2, True), (0, 3, True)]
    assert [s.ranks for s in have.sums] == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]
    assert [each.groups for each in have.together] == [((0, 1), (2, 3))]
    assert have.together[0].factor > 0 and have.slowed is not None and have.slowed.factor.value > 0
    assert probe.now(tmp_path / "probe.json") == (0.9, "products beside a sum")
    assert have.wires[0].latency_s.value > 0 and have.devices[1].flop_per_s.value > 0


def test_one_process_alone_measures_its_device_and_no_link(tmp_path: Path) -> None:
    alone = local(tmp_path, 1)
    assert len(alone.devices) == 1 and not alone.wires and not alone.sums and alone.slowed is None
    made = probe.cluster_of(alone, "lab", 1, ["cpu"])
    assert made.links.node is None and parse_cluster(clusters.dump(made)) == made
    assert probe.slow(alone) == [] and probe.shared(alone) == []


def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(BadInput, match=r"--ranks: 3 ranks \(allowed: at most 2, one for each GPU here\)"):
        local(tmp_path, 3)
