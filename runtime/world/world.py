"""The processes of a run as values: this rank, their number, and communicators made when they are needed.

The mesh of a plan: which rank stands at which coordinates, and what it holds.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from planner.plan import Place, Plan
from runtime import runfolder
from runtime.world import rendezvous as meeting

CLOCK_ROUNDS = 9  # of which the quickest tells the difference of two clocks
TIMEOUT_S = 120.0  # of a single communication call, where nobody watches the ranks


@dataclass(frozen=True)
class HostClock:
    """The difference between the first rank's clock and this host's, as it was when the ranks met."""

    offset_ns: int = 0  # added to a time of this host, it gives the time of the first rank's host
    error_ns: int = 0  # at most; half of the quickest way there and back


class Rail(Protocol):
    """A communicator of hosts: one of torch.distributed's groups, or one of ours over a network card."""

    def rank(self) -> int:
        """Returns the number of this rank in it."""

    def size(self) -> int:
        """Returns how many ranks it has."""

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> dist.Work:
        """Starts to send a tensor."""

    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> dist.Work:
        """Starts to receive a tensor."""

    def allreduce(self, tensors: list[Tensor], /) -> dist.Work:
        """Starts to sum a tensor over all ranks, in place."""

    def alltoall_base(
        self, into: Tensor, sent: Tensor, sizes: list[int], sent_sizes: list[int], /
    ) -> dist.Work:
        """Starts to send each rank a part, and to receive one of each."""


@dataclass(frozen=True)
class World:
    """The run as one rank sees it; `group` is None in a run of one process, which needs no communication at all."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None
    clock: HostClock = HostClock()
    patience_s: float = TIMEOUT_S  # of a single communication call

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Makes a communicator; all ranks must call it, in one order.

        Args: `ranks` are its members.
        Returns: None for ranks that are no part of it.
        """
        made = dist.new_group(list(ranks), timeout=timedelta(seconds=self.patience_s))
        return made if self.rank in ranks else None

    def rail(self, ranks: Sequence[int], name: str, interface: str = "") -> Rail:
        """Makes a communicator of hosts over one network card; its ranks call this, and nobody else.

        Args: `ranks` are its members, numbered as they stand there; `name` is no other communicator's of them;
            `interface` is the card's, "" for that of all messages.
        """
        store = PrefixStore(f"rail/{name}/", _get_default_store())
        return rail_of(store, ranks.index(self.rank), len(ranks), interface, self.patience_s)

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


def rail_of(store: Store, rank: int, size: int, interface: str = "", patience_s: float = TIMEOUT_S) -> Rail:
    """Makes a communicator of hosts over one network card; collective.

    Args: `store` is where its ranks meet, and nobody else; `interface` is the card's, "" for that of all messages; a
        call may last for `patience_s`.
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=patience_s)
    make = dist.ProcessGroupGloo.create_device
    options._devices = [
        make(interface=interface) if interface else dist.ProcessGroupGloo.create_default_device()
    ]
    return cast(Rail, dist.ProcessGroupGloo(store, rank, size, options))


def gpu_of(slot: int) -> torch.device:
    """Returns the GPU of a rank: that of its slot, or the only one that it may see.

    Args: `slot` is its device on the node.
    """
    return torch.device("cuda", slot % max(1, torch.cuda.device_count()))


def alone(device: torch.device) -> World:
    """Returns the world of a run of one process.

    Args: `device` is where it computes.
    """
    return World(0, 1, device, None)


def join(
    rendezvous: Path,
    rank: int,
    size: int,
    device: torch.device,
    how: str = runfolder.FILE,
    cards: Sequence[str] = (),
    patience_s: float = TIMEOUT_S,
) -> World:
    """Meets the other ranks, of whom the code of models learns nothing.

    Args: `rendezvous` is a file in the run folder; `how` is one of those in `rendezvous.py`, by default a file that
        nobody else can reach; `cards` are interfaces of this host that sums go over. Messages go over the first, where
        the environment does not say otherwise. A call may last for `patience_s`, longer than who watches ranks waits.
    Returns: the world of this rank.
    Raises: BadInput where an interface does not exist.
    """
    meeting.check_cards(cards)
    if cards:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", cards[0])
    if size == 1:
        return alone(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = meeting.store(how, rendezvous, rank, size)
    meeting.hide_from_models()
    timeout = timedelta(seconds=patience_s)
    if store is None:
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
    else:
        store.set_timeout(timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    assert dist.group.WORLD is not None
    return World(rank, size, device, dist.group.WORLD, clock(rank, size, dist.group.WORLD), patience_s)


def clock(
    rank: int,
    size: int,
    group: dist.ProcessGroup,
    host: str | None = None,
    now: Callable[[], int] = time.monotonic_ns,
) -> HostClock:
    """Measures how the clock of this host differs from that of the first rank's. All ranks call it.

    One rank of each host asks the first rank for its time again and again. The quickest answer counts.
    Args: `host` names the clock that this rank reads, by default the running kernel; `now` reads it.
    """
    own = hashlib.sha256((_kernel() if host is None else host).encode()).digest()[:8]
    mine = torch.tensor([int.from_bytes(own, "big", signed=True)])
    told = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(told, mine, group=group)
    hosts = [int(name) for name in told]
    if len(set(hosts)) == 1:
        return HostClock()
    asks = sorted({name: at for at, name in reversed(list(enumerate(hosts)))}.values())  # the first of each
    found = torch.zeros(2, dtype=torch.int64)
    for other in asks[1:]:
        if rank == 0:
            _tell_time(other, group, now)
        elif rank == other:
            found = _ask_time(group, now)
    rows = [torch.empty_like(found) for _ in range(size)]
    dist.all_gather(rows, found, group=group)
    offset, error = rows[hosts.index(hosts[rank])].tolist()
    return HostClock(offset, error)


def _kernel() -> str:
    """Returns the name of the clock that processes here share: that of the boot, and of the space of times."""
    words = []
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        words.append(os.readlink("/proc/self/ns/time"))
    return " ".join(words) or os.uname().nodename


def _tell_time(other: int, group: dist.ProcessGroup, now: Callable[[], int]) -> None:
    asked = torch.zeros(1, dtype=torch.int64)
    for _ in range(CLOCK_ROUNDS):
        dist.recv(asked, other, group=group)
        dist.send(torch.tensor([now()]), other, group=group)


def _ask_time(group: dist.ProcessGroup, now: Callable[[], int]) -> torch.Tensor:
    """Returns offset and error of the quickest answer of the first rank."""
    best, answer = (0, 1 << 62), torch.zeros(1, dtype=torch.int64)
    for _ in range(CLOCK_ROUNDS):
        begin = now()
        dist.send(torch.zeros(1, dtype=torch.int64), 0, group=group)
        dist.recv(answer, 0, group=group)
        end = now()
        if (error := (end - begin + 1) // 2) < best[1]:
            best = int(answer) - (begin + end) // 2, error
    return torch.tensor(best)


@dataclass(frozen=True)
class RankMesh:
    """The ranks of a plan and their coordinates: replica, pipeline worker and shard."""

    places: tuple[Place, ...]
    place: tuple[tuple[int, ...], ...]  # place[pipe][stage] is the pipeline worker

    @classmethod
    def of(cls, plan: Plan) -> RankMesh:
        """Returns the mesh of a plan.

        Args: `plan` has a table of places.
        """
        return cls(plan.places, plan.schedule.place)

    @cached_property
    def by_rank(self) -> dict[int, Place]:
        """Returns the coordinates of each rank, by rank."""
        return {place.rank: place for place in self.places}

    @cached_property
    def _rank_at(self) -> dict[tuple[int, int, int], int]:
        return {(p.data, p.pipeline, p.spatial): p.rank for p in self.places}

    def peers(self, rank: int) -> tuple[int, ...]:
        """Returns the ranks of a rank's pipeline, by pipeline worker.

        Args: `rank` is one of them; the others share its replica and shard.
        """
        here = self.by_rank[rank]
        workers = sorted({p.pipeline for p in self.places})
        return tuple(self._rank_at[here.data, worker, here.spatial] for worker in workers)

    def held(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Returns pipe and stage of every stage that lives on a rank.

        Args: `rank` is one of the plan's.
        """
        worker = self.by_rank[rank].pipeline
        return tuple(
            (pipe, stage)
            for pipe, stages in enumerate(self.place)
            for stage, at in enumerate(stages)
            if at == worker
        )

    def holders(self, stages: Iterable[int]) -> tuple[int, ...]:
        """Returns every rank that holds one of these stages, in any pipe, replica and shard.

        Args: `stages` are numbers of stages.
        Returns: ranks in ascending order.
        """
        wanted = set(stages)
        workers = {pipe[stage] for pipe in self.place for stage in wanted}
        return tuple(sorted(p.rank for p in self.places if p.pipeline in workers))
