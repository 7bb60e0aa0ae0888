"""Who shares with whom, and their wires: a communicator for each row and column, and the reduce-scatter over one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from planner.model import ModelGraph
from planner.plan import BY_ELEMENT, Plan, shard_of, shard_ranks, units_of_parameters
from runtime.sums import Line
from runtime.update import Bucket
from runtime.world import RankMesh

# How launched work goes on: beside the training, or over at once, or only when somebody waits for it. The last two are
# for a rank that runs alone: in one of them it holds the most.
Pace = Literal["beside", "at once", "awaited"]
CHUNK = 2**18  # elements of a gather or a reduce-scatter at a time; up to twice as many are held meanwhile


def shared_buckets(
    buckets: Iterable[Bucket], plan: Plan, graph: ModelGraph, mesh: RankMesh
) -> tuple[Bucket, ...]:
    """Returns the buckets with what their holders share, as the plan has it; names are then in the order of units.

    Args: `buckets` are those of all stages; `graph` is the model in the order of the plan.
    """
    unit_of = units_of_parameters(plan, graph)
    return tuple(_shared(bucket, plan, mesh, unit_of) for bucket in buckets)


def _shared(bucket: Bucket, plan: Plan, mesh: RankMesh, unit_of: Mapping[str, str]) -> Bucket:
    shard = shard_of(plan, bucket.stages[0])
    if shard is None or shard.what not in BY_ELEMENT:
        return bucket if shard is None else replace(bucket, shared=shard.what)
    at = {unit: position for position, unit in enumerate(dict.fromkeys(unit_of[n] for n in bucket.names))}
    names = sorted(bucket.names, key=lambda name: at[unit_of[name]])
    units = tuple(tuple(run) for _, run in groupby(names, unit_of.__getitem__))
    length, rows = shard_ranks(plan, shard), []
    key = lambda rank: (mesh.by_rank[rank].pipeline, mesh.by_rank[rank].spatial)  # noqa: E731
    for _, own in groupby(sorted(bucket.ranks, key=key), key):
        replicas = sorted(own, key=lambda rank: mesh.by_rank[rank].data)
        rows += [tuple(replicas[i : i + length]) for i in range(0, len(replicas), length)]
    return replace(bucket, names=tuple(names), shared=shard.what, rows=tuple(rows), units=units)


class Wires:
    """The communicators of what a rank shares, and one queue for each: all of its ranks launch in one order."""

    def __init__(self, new_group: Callable[[Sequence[int]], dist.ProcessGroup | None]) -> None:
        """Makes none yet.

        Args: `new_group` is collective, and returns None to ranks that are no part of the group.
        """
        self.pace: Pace = "beside"
        self._new_group = new_group
        self._rows: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._lines: dict[dist.ProcessGroup, Line] = {}

    def of(self, bucket: Bucket, rank: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """Returns the communicators of a rank's row and column; all ranks call this for all buckets, in one order.

        Returns: None for the column where the bucket has one row, and both None on ranks that do not hold it.
        """
        for row in bucket.rows:
            if row not in self._rows:
                self._rows[row] = self._new_group(row)
        mine = next((self._rows[row] for row in bucket.rows if rank in row), None)
        column = None
        for ranks in zip(*bucket.rows, strict=True) if len(bucket.rows) > 1 else ():
            made = self._new_group(sorted(ranks))
            column = made if rank in ranks else column
        return mine, column

    def launch(self, group: dist.ProcessGroup, run: Callable[[], object]) -> Future[None]:
        """Queues work on a communicator, and returns what is done with it.

        Args: `run` is done after what was launched before, on a thread of its own.
        """
        if group not in self._lines:
            self._lines[group] = Line()
        start = partial(self._lines[group].launch, run)
        done = _Awaited(start) if self.pace == "awaited" else start()
        if self.pace == "at once":
            done.result()
        return done


class _Awaited(Future[None]):
    """Work that begins when somebody waits for it, as if its link were as slow as can be."""

    def __init__(self, start: Callable[[], Future[None]]) -> None:
        super().__init__()
        self._start = start

    def result(self, timeout: float | None = None) -> None:
        """Does the work, and returns when it is done."""
        if not self.done():
            self._start().result(timeout)
            self.set_result(None)


def stand_in(parameter: Tensor, device: torch.device | None = None) -> Tensor:
    """Returns what stands for a parameter while no rank of this process holds it: its shape, and NaN for every number.

    Args: `parameter` has shape and type; the `device` is the parameter's where it is not given.
    """
    where = device or parameter.device
    return torch.full((), torch.nan, dtype=parameter.dtype, device=where).expand(parameter.shape)


def gather_parts(whole: Tensor, part: Tensor, group: dist.ProcessGroup) -> None:
    """Gathers equal parts of a tensor of one dim from a group, in the order of ranks; collective.

    On the host that goes piece by piece, since gloo gathers into memory of its own.
    Args: `whole` gets all parts; `part` is this rank's, and no view of `whole`.
    """
    if not part.numel():  # there are parameters without elements
        return
    table = whole.view(-1, part.numel())
    step = part.numel() if whole.device.type == "cuda" else max(1, CHUNK // len(table))
    for first in range(0, part.numel(), step):
        rows = [row[first : first + step] for row in table]
        dist.all_gather(rows, part[first : first + step], group=group)


def scatter_sum(buffer: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
    """Adds the sum over a group of one part of each rank's buffer to a tensor; collective.

    On the host each element is added up in the order of ranks, as `add_up` does.
    Args: `buffer` has as many equal parts as the group has ranks; `own` gets the sum of this rank's part.
    """
    ranks = dist.get_world_size(group)
    if not own.numel():
        return
    if buffer.device.type == "cuda":
        found = torch.empty_like(own)
        dist.reduce_scatter(found, list(torch.split(buffer, len(own))), group=group)
        own.add_(found)
        return
    table, step = buffer.view(ranks, -1), max(1, CHUNK // ranks)
    for first in range(0, table.shape[1], step):
        sent = table[:, first : first + step].contiguous()
        found = torch.empty_like(sent)
        sizes = [sent.shape[1]] * ranks
        dist.all_to_all_single(found.view(-1), sent.view(-1), sizes, sizes, group=group)
        total, *others = found
        for other in others:
            total.add_(other)
        own[first : first + step].add_(total)
