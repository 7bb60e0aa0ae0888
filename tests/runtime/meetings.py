"""What pool workers run to meet each other in every way, and what they find listening then."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from runtime.world import world as groups


def meet(rank: int, ranks: int, rendezvous: Path, *, how: str) -> tuple[bool, list[str]]:
    """Whether all ranks came together, and the addresses at which the socket of the store listens."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"), how)
    try:
        agreed = world.agree("the same")
        found = json.loads(Path(rendezvous).read_text()) if how.startswith("tcp") else {}
        return agreed, listening(found["port"]) if found else []
    finally:
        world.close()


def listening(port: int) -> list[str]:
    """Addresses, as the kernel writes them."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]


def clocks(rank: int, ranks: int, rendezvous: Path, *, apart_ns: int) -> tuple[int, int]:
    """Offset and error where every two ranks are on a host of their own, with clocks apart."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"), "file")
    assert world.group is not None
    host = rank // 2
    try:
        found = groups.clock(
            rank, ranks, world.group, f"host {host}", lambda: time.monotonic_ns() + host * apart_ns
        )
        return found.offset_ns, found.error_ns
    finally:
        world.close()
