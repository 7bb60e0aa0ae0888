"""Measures this machine, or nodes of a cluster, and draws conclusions: a cluster file, and what is slow.

Ranks are processes that meet at a file, like those of a run. Units are seconds, bytes and operations.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from pydantic import TypeAdapter

from planner.cluster import Card, Cluster, Link, Links, NodeGroup, Rates, device_margin, host_margin
from planner.sums import SumLoad, SumRate, fitted, parse
from runtime.probe.measurements import (
    LARGE_BYTES,
    REPEATS,
    ProbedDevice,
    ProbedLink,
    ProbedSum,
    Slowed,
    Together,
    beside,
    by_host,
    device_of,
    pairs,
    slowed_of,
    sum_of,
    together_of,
    wire_of,
)
from runtime.runfolder import write_whole
from runtime.sums import TimedSum, time_sums
from runtime.world import World


@dataclass(frozen=True, kw_only=True)
class Found:
    """All numbers that a probe has measured."""

    hosts: tuple[str, ...]  # of every rank
    devices: tuple[ProbedDevice, ...]  # of every rank
    wires: tuple[ProbedLink, ...]
    sums: tuple[ProbedSum, ...]
    together: tuple[Together, ...] = ()
    slowed: Slowed | None = None
    named: tuple[TimedSum, ...] = ()  # between hosts, each sum that a plan may name
    cards: tuple[str, ...] = ()  # interfaces that parts of those between nodes went over


def probe(world: World, result: Path, repeats: int = REPEATS, cards: Sequence[str] = ()) -> None:
    """Measures devices, links and sums. All ranks call it.

    Args: `result` is the file that the first rank writes; `cards` are interfaces of network cards of every host.
    """
    parts = [_part(result, rank) for rank in range(world.size)]
    told = ProbeProgress(result, world)
    for rank in range(world.size):  # one after another, so that none slows another
        told.now(0.2 * rank / world.size, f"device of rank {rank}, {rank + 1} of {world.size}")
        if rank == world.rank:
            mine = {"host": socket.gethostname(), "device": asdict(device_of(world.device, repeats))}
            write_whole(parts[rank], json.dumps(mine))
        world.barrier()
    rows = [json.loads(part.read_text()) for part in parts]
    hosts, devices = [row["host"] for row in rows], [row["device"] for row in rows]
    talk = pairs(hosts)
    for number, (a, b) in enumerate(talk):
        told.now(
            0.2 + 0.4 * number / len(talk), f"link between ranks {a} and {b}, {number + 1} of {len(talk)}"
        )
        wire = wire_of(world, a, b, within_node=hosts[a] == hosts[b], repeats=repeats)
        if wire is not None and world.rank == a:
            write_whole(_part(result, f"wire-{number}"), json.dumps(asdict(wire)))
        world.barrier()
    sums = []
    for count in range(2, world.size + 1):
        told.now(0.6 + 0.2 * count / (world.size + 1), f"sum over {count} of {world.size} ranks")
        sums.append(sum_of(world, range(count), LARGE_BYTES, repeats))
    told.now(0.75, "sums by name")
    named = _named(world, hosts, repeats, cards)
    told.now(0.85, "sums beside each other")
    together = [together_of(world, groups, repeats) for groups in beside(hosts)]
    told.now(0.9, "products beside a sum")
    slowed = slowed_of(world, repeats) if world.size > 1 else None
    if world.rank == 0:
        wires = [json.loads(_part(result, f"wire-{number}").read_text()) for number in range(len(talk))]
        data = {"hosts": hosts, "devices": devices, "wires": wires, "slowed": slowed and asdict(slowed)}
        data |= {"sums": [asdict(s) for s in sums if s], "together": [asdict(t) for t in together if t]}
        data |= {"named": [asdict(row) for row in named], "cards": list(cards)}
        write_whole(result, json.dumps(data))


def _named(world: World, hosts: Sequence[str], repeats: int, cards: Sequence[str]) -> list[TimedSum]:
    """Returns what sums by name take on the first host, and between the first ranks of all hosts.

    GPUs leave their sums to NCCL.
    """
    if world.device.type != "cpu":
        return []
    rows = by_host(hosts)
    found = time_sums(world, rows[0], repeats) if len(rows[0]) > 1 else []
    if len(rows) > 1:
        found += time_sums(world, [row[0] for row in rows], repeats, cards)
    return found


@dataclass(frozen=True)
class ProbeProgress:
    """The progress of a probe. The first rank writes it in a file beside the result."""

    result: Path
    world: World

    def now(self, share: float, doing: str) -> None:
        """Writes what is measured now.

        Args: `share` of the probe is done, from 0 to 1.
        """
        if self.world.rank == 0:
            write_whole(_part(self.result, "now"), json.dumps([share, doing]))


def now(result: Path) -> tuple[float, str] | None:
    """Returns the share of the probe that is done and what is measured, None before the first measurement.

    Args: `result` is the file that the probe will write.
    """
    try:
        return TypeAdapter(tuple[float, str]).validate_json(_part(result, "now").read_text())
    except FileNotFoundError:
        return None


def _part(result: Path, name: str | int) -> Path:
    """Returns the file of one rank, of one pair of ranks, or of the progress."""
    return result.with_name(f"{result.stem}-{name}.json")


def read(result: Path) -> Found:
    """Returns what a probe has measured.

    Args: `result` is the file that it has written.
    """
    return TypeAdapter(Found).validate_json(result.read_text())


def cluster_of(found: Found, name: str, nodes: int, known: Sequence[str]) -> Cluster:
    """Returns a cluster of machines like those measured.

    Args: `nodes` is their number; `known` are the names of catalogued devices. Ranks share the memory of a
      host, of which each leaves a part to its process and to fragments.
    """
    here = [rank for rank, host in enumerate(found.hosts) if host == found.hosts[0]]
    first = found.devices[0]
    cpu = first.kind == "cpu"
    memory = first.memory_bytes // len(here) if cpu else first.memory_bytes
    group = NodeGroup(
        count=nodes,
        device=next((entry for entry in known if entry == first.kind), first.kind),
        devices_per_node=len(here),
        memory_bytes=memory,
        margin_bytes=host_margin(memory) if cpu else device_margin(memory, first.taken_bytes),
        devices_per_card=None if found.cards else _behind_a_card(found, len(here)),
        cards=tuple(Card(interface=name) for name in found.cards),
        nodes_per_rack=None,
        rates=Rates(
            fp32_flop_per_s=float(f"{first.flop_per_s.value:.3g}"),
            memory_bytes_per_s=float(f"{first.copy_bytes_per_s.value:.3g}"),
        ),
    )
    links = Links(node=_link(found, True), rack=_link(found, False), cluster=None)
    return Cluster(name=name, nodes=(group,), links=links, fitted=None)


def _behind_a_card(found: Found, devices: int) -> int | None:
    """Returns how many devices of a node share a network card, None where all of them do.

    It is the factor by which sums between nodes slow down when all devices of a node sum at once.
    """
    across = [
        each
        for each in found.together
        if len({found.hosts[rank] for rank in each.groups[0]}) == len(each.groups[0]) > 1
    ]
    if not across or len(across[0].groups) < devices:
        return None
    sharing = max(1, round(across[0].factor))
    return sharing if sharing < devices else None


def _link(found: Found, within_node: bool) -> Link | None:
    wires = [wire for wire in found.wires if wire.within_node == within_node]
    if not wires:
        return None
    return Link(
        latency_s=float(f"{median(wire.latency_s.value for wire in wires):.3g}"),
        bandwidth_bytes_per_s=float(f"{median(wire.bytes_per_s.value for wire in wires):.3g}"),
        sums=_rates(found, within_node),
    )


def _rates(found: Found, within_node: bool) -> dict[str, SumRate]:
    """Returns the rate of each sum that was measured over one kind of link."""
    rows: dict[str, list[TimedSum]] = {}
    for row in found.named:
        if (len({found.hosts[rank] for rank in row.ranks}) == 1) == within_node:
            rows.setdefault(row.name, []).append(row)
    return {
        name: fitted(
            parse(name),
            SumLoad(places=len(every[0].ranks), cards=every[0].cards),
            [(row.bytes, median(row.samples_s)) for row in every],
        )
        for name, every in rows.items()
    }


def slow(found: Found, factor: float = 1.5) -> list[str]:
    """Returns a line for each device and link that is worse than the median of its kind.

    Args: `factor` is by how much worse it must be.
    """
    rows = []
    for rank, device in enumerate(found.devices):
        alike = [other for other in found.devices if other.kind == device.kind]
        for verb, rate, rates in (
            ("multiplies", device.flop_per_s, [other.flop_per_s for other in alike]),
            ("copies", device.copy_bytes_per_s, [other.copy_bytes_per_s for other in alike]),
        ):
            middle = median(each.value for each in rates)
            if rate.value * factor < middle:
                share = rate.value / middle
                rows.append(f"rank {rank} on {found.hosts[rank]} {verb} at {share:.0%} of the middle rate")
    for within in (True, False):
        wires = [wire for wire in found.wires if wire.within_node == within]
        middle = median([wire.bytes_per_s.value for wire in wires] or [0.0])
        for wire in wires:
            if wire.bytes_per_s.value * factor < middle:
                share = wire.bytes_per_s.value / middle
                ends = f"{found.hosts[wire.a]} to {found.hosts[wire.b]}"
                rows.append(f"ranks {wire.a} and {wire.b} ({ends}) talk at {share:.0%} of the middle rate")
    return rows


def shared(found: Found) -> list[str]:
    """Returns a line for each slowdown by things that happen at once.

    Args: `found` is what a probe has measured.
    """
    rows = [
        f"{len(each.groups)} groups of {len(each.groups[0])} ranks that sum at once take {each.factor:.2f} times "
        f"as long as one alone ({'; '.join(','.join(map(str, ranks)) for ranks in each.groups)})"
        for each in found.together
    ]
    if found.slowed is not None:
        rows.append(
            f"matrix products take {found.slowed.factor.value:.2f} (+-{found.slowed.factor.spread:.2f}) times as long "
            "while all ranks sum"
        )
    return rows
