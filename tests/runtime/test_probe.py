"""Measured machines become a cluster that can be planned for, and what is slow among them is named."""

from __future__ import annotations

from pathlib import Path

from planner import cluster as clusters
from runtime import probe
from runtime.groups import join
from runtime.probe import Device, Found, Number, Sum, Wire
from tests.pool import Pool


def device(rate: float = 1e12, kind: str = "cpu") -> Device:
    return Device(
        kind=kind, memory_bytes=8 * 10**9, flop_per_s=Number(rate, 1e9), copy_bytes_per_s=Number(2e10, 1e8)
    )


def wire(b: int, rate: float, *, within: bool) -> Wire:
    return Wire(a=0, b=b, within_node=within, latency_s=Number(2e-5, 1e-6), bytes_per_s=Number(rate, 1e7))


def found(rates: tuple[float, ...] = (1e12,) * 4, wires: tuple[float, ...] = (4e9, 1e9, 1e9)) -> Found:
    hosts = ("n1", "n1", "n2", "n2")
    return Found(
        hosts=hosts,
        devices=tuple(device(rate) for rate in rates),
        wires=tuple(wire(b + 1, rate, within=b == 0) for b, rate in enumerate(wires)),
        sums=(Sum(ranks=(0, 1), bytes=8, seconds=Number(1e-3, 0.0)),),
    )


def test_what_was_measured_is_a_cluster_that_can_be_read_back() -> None:
    made = probe.cluster_of(found(), "lab", 16, ["H100-80GB"])
    again = clusters.parse(clusters.dump(made))
    assert again == made
    group = again.nodes[0]
    assert (group.count, group.devices_per_node, group.memory_bytes) == (16, 2, 4 * 10**9)
    assert again.links.node is not None and again.links.rack is not None
    assert again.links.node.bandwidth_bytes_per_s == 4e9
    assert again.links.rack.bandwidth_bytes_per_s == 1e9


def test_a_slow_device_and_a_slow_link_are_named() -> None:
    assert probe.slow(found()) == []
    assert probe.slow(found(rates=(1e12, 1e12, 4e11, 1e12))) == [
        "rank 2 on n2 multiplies at 40% of the middle rate"
    ]
    rows = probe.slow(found(wires=(4e9, 2.0e9, 2.0e8)))
    assert rows == ["ranks 0 and 3 (n1 to n2) talk at 18% of the middle rate"]


def probed(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> None:
    import torch

    world = join(rendezvous, rank, ranks, torch.device("cpu"))
    probe.probe(world, Path(folder) / "probe.json")
    world.barrier()
    world.close()


def test_two_processes_measure_each_other(pool: Pool, tmp_path: Path) -> None:
    pool.run("tests.runtime.test_probe:probed", 2, folder=str(tmp_path))
    have = probe.read(tmp_path / "probe.json")
    assert len(have.devices) == len(have.hosts) == 2
    assert [(w.a, w.b, w.within_node) for w in have.wires] == [(0, 1, True)]
    assert [s.ranks for s in have.sums] == [(0, 1)]
    assert have.wires[0].latency_s.value > 0 and have.devices[1].flop_per_s.value > 0
