"""Opens a store: ranks tell each other what they read, each node reads its part, and memory is shared out.

All ranks of the run take part, also those that read no samples, since ranks wait for each other meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.units import format_bytes
from runtime.data import Region, Stream, Wanted
from runtime.store.layout import SamplePlaces
from runtime.store.memory import Growing, SharedMemory, free_bytes, opened
from runtime.store.routes import Reader, SampleRoutes, row_length
from runtime.store.samples import flattened, no_indices, read_raw
from runtime.store.store import Beat, Exchanges, Store, StoreCounts, Tell
from runtime.world import World

JUDGED_SAMPLES = 16  # by whose mean size a node knows beforehand that its part does not fit
TURN_S = 1.0  # of reading, after which ranks hear of each other
MOST_WINDOW_BYTES = 2**28  # of a window that is chosen
MOST = 2**62


@dataclass(frozen=True, kw_only=True)
class StoreAsked:
    """Opens the store of a rank, from what the rank knows of its run."""

    world: World
    node: int
    micros: int  # of the largest share of the plan
    steps: int  # of a window; 0: chosen from the memory of the hosts
    ends: int  # position in the stream at which the training is to end
    beat: Beat
    tell: Tell

    def open(
        self, data: Any, region: Region, wanted: Wanted, stream: Stream, first_sample: int
    ) -> Store | None:
        """Opens the store of a rank; all ranks call this at once.

        Args: `data` is the user's dataset, asked for `region`; the run starts at `first_sample` of the stream.
        Returns: None for a rank that reads nothing.
        Raises: BadInput where a node has too little memory, or the dataset is not the same everywhere.
        """
        if stream.length is None or stream.in_order:
            raise no_indices()
        readers = self._readers(region, wanted, len(data))
        found = None
        for each in sorted({reader.region for reader in readers}):
            ranks = tuple(reader for reader in readers if reader.region == each)
            routes = SampleRoutes(ranks, len(data), wanted.micro, wanted.step_samples, stream)
            here = self.world.rank in {reader.rank for reader in ranks}
            store = self._opened(data, routes, first_sample, here, _leaders_by_host(readers))
            found = store if here else found
        return found

    def _readers(self, region: Region, wanted: Wanted, length: int) -> tuple[Reader, ...]:
        host = int.from_bytes(hashlib.sha256(os.uname().nodename.encode()).digest()[:7], "big")
        own = Reader(self.world.rank, self.node, host, wanted.first, wanted.micros, region)
        rows = self._told([length, *own.row(row_length(self.micros))])
        lengths = sorted({row[0] for row in rows})
        if len(lengths) > 1:
            raise BadInput(
                f"dataset() has {lengths[0]} samples on one rank and {lengths[-1]} on another",
                where="store",
                allowed="the same dataset on all nodes",
            )
        every = (Reader.of_row(row[1:]) for row in rows)
        return tuple(reader for reader in every if reader.micros)

    def _told(self, row: Sequence[int]) -> list[list[int]]:
        """Returns the rows of all ranks."""
        mine = torch.tensor(row, dtype=torch.int64)
        if self.world.group is None:
            return [mine.tolist()]
        rows = [torch.empty_like(mine) for _ in range(self.world.size)]
        dist.all_gather(rows, mine, group=self.world.group)
        return [each.tolist() for each in rows]

    def _opened(
        self, data: Any, routes: SampleRoutes, start: int, here: bool, leaders: dict[int, int]
    ) -> Store | None:
        """Opens the store of the ranks that read one part of every sample; other ranks wait with them."""
        leads = here and self.world.rank in routes.leaders
        many = len(routes.leaders) > 1
        group = self.world.new_group(routes.leaders) if many else None
        counts, growing = StoreCounts(), Growing() if leads else None
        room = 0
        sizes = np.zeros(routes.samples, np.int64)
        if growing is not None:
            host = next(x.host for x in routes.readers if x.rank == self.world.rank)
            room = free_bytes() // leaders[host]
        self._read(data, routes, growing, sizes, room, counts)
        sizes = self._summed(sizes)
        part = int(sizes[slice(*_span(routes, self.node))].sum()) if here else 0
        steps = self._window(routes, sizes, room - part, leads)
        layout = SamplePlaces(routes, self.node, sizes, start, steps) if here else None
        window_bytes = _window_bytes(routes, self.node, sizes, steps) if here else 0
        if leads and 2 * window_bytes > room - part:
            raise _too_little(self.node, part + 2 * window_bytes, room)
        counts.window_steps = steps
        memory = self._shared(routes, growing, part, window_bytes, here)
        if layout is None or memory is None:
            return None
        if leads:
            self.tell(asdict(counts))
        number = [reader.rank for reader in routes.on(self.node)].index(self.world.rank)
        exchanges = None
        if leads and group is not None:
            exchanges = Exchanges(layout, memory, group, len(routes.on(self.node)), counts, self.tell)
        return Store(data, layout, memory, number, exchanges, self.beat, self.ends)

    def _read(
        self,
        data: Any,
        routes: SampleRoutes,
        growing: Growing | None,
        sizes: IntArray,
        room: int,
        counts: StoreCounts,
    ) -> None:
        """Reads the node's part, front to back, while the other ranks do or wait for it."""
        reading = _reading(data, routes, self.node, growing, sizes, room, counts) if growing else iter(())
        done = False
        while not done:
            until, mine = time.monotonic() + TURN_S, False
            while not mine and time.monotonic() < until:
                self.beat(growing is None)
                mine = next(reading, None) is None
            done = bool(self._least(int(mine)))

    def _least(self, number: int) -> int:
        found = torch.tensor([number])
        if self.world.group is not None:
            dist.all_reduce(found, dist.ReduceOp.MIN, group=self.world.group)
        return int(found)

    def _summed(self, sizes: IntArray) -> IntArray:
        found = torch.from_numpy(sizes)
        if self.world.group is not None:
            dist.all_reduce(found, group=self.world.group)
        return found.numpy()

    def _window(self, routes: SampleRoutes, sizes: IntArray, room: int, leads: bool) -> int:
        """Returns the steps of a window: as many as the memory of every node has room for twice, up to an epoch."""
        epoch = max(1, -(-routes.stream.epoch_samples // routes.step_samples))
        most = MOST
        if leads:
            step = max(1, routes.per_step(self.node) * int(sizes.max(initial=1)))
            most = max(1, min(room // 2, MOST_WINDOW_BYTES) // step)
        return min(self.steps or self._least(most), epoch)

    def _shared(
        self, routes: SampleRoutes, growing: Growing | None, part: int, window: int, here: bool
    ) -> SharedMemory | None:
        memory = growing.whole(part, window) if growing is not None else None
        if memory is not None:
            memory.head[:] = -1
        rows = self._told([os.getpid(), growing.file if growing is not None else 0])
        if here and memory is None:
            process, file = rows[routes.leader(self.node)]
            memory = opened(f"/proc/{process}/fd/{file}", part, window)
        self._least(0)  # until all have opened it
        if growing is not None:
            os.close(growing.file)
        return memory


def _reading(
    data: Any,
    routes: SampleRoutes,
    node: int,
    growing: Growing,
    sizes: IntArray,
    room: int,
    counts: StoreCounts,
) -> Iterator[int]:
    """Yields the samples of a node's part as they are read.

    Raises: BadInput where they do not fit into the memory of the node.
    """
    first, end = _span(routes, node)
    region = routes.readers[0].region
    for index in range(first, end):
        sample = flattened(read_raw(data, index, region))
        growing.add(sample)
        sizes[index] = len(sample)
        counts.read_samples += 1
        counts.read_bytes += len(sample)
        likely = (
            counts.read_bytes * (end - first) // JUDGED_SAMPLES
            if counts.read_samples == JUDGED_SAMPLES
            else 0
        )
        if max(counts.read_bytes, likely) > room:
            raise _too_little(node, max(counts.read_bytes, likely), room)
        yield index


def _span(routes: SampleRoutes, node: int) -> tuple[int, int]:
    place, bounds = routes.nodes.index(node), routes.bounds
    return int(bounds[place]), int(bounds[place + 1])


def _window_bytes(routes: SampleRoutes, node: int, sizes: IntArray, steps: int) -> int:
    """Returns the most bytes that a window takes on a node: the largest samples, or all that are not its own."""
    first, end = _span(routes, node)
    others = int(sizes.sum() - sizes[first:end].sum())
    return min(others, routes.per_step(node) * steps * int(sizes.max(initial=0)))


def _leaders_by_host(readers: Sequence[Reader]) -> dict[int, int]:
    """Returns how many stores each host is to hold, by its digest: one for each node and region."""
    stores = {(reader.host, reader.node, reader.region) for reader in readers}
    hosts = [host for host, _, _ in stores]
    return {host: hosts.count(host) for host in hosts}


def _too_little(node: int, needed: int, room: int) -> BadInput:
    return BadInput(
        f"node {node} is to keep {format_bytes(needed)} of samples in memory, and has {format_bytes(room)} for them",
        where="store",
        allowed="more nodes than so many keep it on, nodes with more memory, a smaller --store ram:STEPS, or no store",
    )
