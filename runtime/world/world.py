"""The processes of a run as values: this rank, their number, and communicators made when they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from runtime import runfolder
from runtime.world import rendezvous as meeting

TIMEOUT_S = 120.0  # of a single communication call; the supervisor is faster


@dataclass(frozen=True)
class World:
    """The run as one rank sees it; `group` is None in a run of one process, which needs no communication at all."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Makes a communicator; all ranks must call it, in one order.

        Args: `ranks` are its members.
        Returns: None for ranks that are no part of it.
        """
        made = dist.new_group(list(ranks), timeout=timedelta(seconds=TIMEOUT_S))
        return made if self.rank in ranks else None

    def agree(self, text: str) -> bool:
        """Returns whether all ranks hold the same text; all of them must call it.

        Args: `text` is compared by its digest.
        """
        if self.group is None:
            return True
        digest = hashlib.sha256(text.encode()).digest()
        mine = torch.tensor(list(digest), dtype=torch.uint8)
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=self.group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group=self.group)
        return torch.equal(low, high)

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        if self.group is not None:
            dist.all_reduce(torch.zeros(1), group=self.group)

    def close(self) -> None:
        """Ends the communication of this rank."""
        if self.group is not None:
            dist.destroy_process_group()


def alone(device: torch.device) -> World:
    """Returns the world of a run of one process.

    Args: `device` is where it computes.
    """
    return World(0, 1, device, None)


def join(rendezvous: Path, rank: int, size: int, device: torch.device, how: str = runfolder.FILE) -> World:
    """Meets the other ranks.

    Args: `rendezvous` is a file in the run folder; `how` is one of those in `rendezvous.py`, by default a
        file that nobody else can reach.
    Returns: the world of this rank.
    """
    if size == 1:
        return alone(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = meeting.store(how, rendezvous, rank, size)
    timeout = timedelta(seconds=TIMEOUT_S)
    if store is None:
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    else:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return World(rank, size, device, dist.group.WORLD)
