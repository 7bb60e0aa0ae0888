"""Gradients: where they are added up, and the one sum over everybody who holds a parameter.

A tied weight on two stages, the two ends of a Chimera pair and data-parallel replicas are the same thing here: a
set of ranks. Parameters with the same users' stages share that set, so they share a bucket: one flat buffer whose
views are the parameters' `.grad`, one communicator, one sum a step, launched when the last contribution is in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from planner.model import ModelGraph
from runtime.places import Mesh
from runtime.trace import clock_ns

Node = tuple[int, int]  # pipe, stage


@dataclass(frozen=True, slots=True)
class Bucket:
    """Trained parameters of one type that live on the same stages; the same on every rank."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]


def buckets_of(
    graph: ModelGraph, stage_of: Sequence[int], mesh: Mesh, trained: Collection[str]
) -> tuple[Bucket, ...]:
    found: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for parameter in graph.parameters:
        if parameter.name in trained:
            stages = tuple(sorted({stage_of[graph.index[user]] for user in parameter.users}))
            found.setdefault((stages, parameter.dtype), []).append(parameter.name)
    return tuple(
        Bucket(stages, mesh.holders(stages), dtype, tuple(names))
        for (stages, dtype), names in sorted(found.items())
    )


class Flat:
    """One bucket on one rank: its parameters and their gradients, each as one buffer."""

    def __init__(self, bucket: Bucket, parameters: Mapping[str, Tensor], nodes: Iterable[Node]) -> None:
        self.bucket, self.nodes = bucket, frozenset(nodes)
        self.parameters = {name: parameters[name] for name in bucket.names}
        owned = list(self.parameters.values())
        total = sum(p.numel() for p in owned)
        self.values = torch.empty(total, dtype=owned[0].dtype, device=owned[0].device)
        self.ranges: dict[str, tuple[int, int]] = {}
        start = 0
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                end = start + parameter.numel()
                self.ranges[name] = (start, end)
                self.values[start:end].copy_(parameter.reshape(-1))
                parameter.data = self.values[start:end].view(parameter.shape)
                start = end
        self.grads = torch.zeros_like(self.values)  # in the memory that the loaded parameters have left
        for name, (start, end) in self.ranges.items():
            self.parameters[name].grad = self.grads[start:end].view(self.parameters[name].shape)


@dataclass(slots=True)
class _Pending:
    """What is left to happen for a bucket in this step."""

    launches: set[Node]
    steps: set[Node]
    work: dist.Work | None = None


class GradientSync:
    """Follows SYNC and STEP actions; tells when a bucket is summed and may be updated.

    A bucket is launched when all of its stages on this rank have said SYNC, and stepped when all have said STEP.
    """

    def __init__(
        self,
        flats: Sequence[Flat],
        groups: Mapping[Bucket, dist.ProcessGroup],
        uncounted: Collection[str] = (),
        on_sum: Callable[[Bucket, int, int], None] | None = None,
    ) -> None:
        """Gradients of `uncounted` parameters are added by another rank that computed the same; `on_sum` is told
        when a sum was launched and when it was complete, from a thread of its own."""
        self.flats, self._groups, self._uncounted = tuple(flats), groups, frozenset(uncounted)
        self._on_sum = on_sum
        self._by_node: dict[Node, list[Flat]] = {}
        for flat in flats:
            for node in flat.nodes:
                self._by_node.setdefault(node, []).append(flat)
        self._pending: dict[Bucket, _Pending] = {}

    def begin(self) -> None:
        """Gradients of a new step start at zero; they are never let go, since they are views."""
        for flat in self.flats:
            flat.grads.zero_()
            self._pending[flat.bucket] = _Pending(set(flat.nodes), set(flat.nodes))

    def launch(self, node: Node) -> None:
        for flat in self._by_node.get(node, ()):
            pending = self._pending[flat.bucket]
            pending.launches.discard(node)
            if not pending.launches and flat.bucket in self._groups:
                for name in self._uncounted & flat.ranges.keys():
                    start, end = flat.ranges[name]
                    flat.grads[start:end].zero_()
                pending.work = self._sum(flat)

    def _sum(self, flat: Flat) -> dist.Work:
        start = clock_ns()
        work = dist.all_reduce(flat.grads, group=self._groups[flat.bucket], async_op=True)
        assert isinstance(work, dist.Work)
        told = self._on_sum
        if told is not None and flat.grads.device.type == "cpu":
            work.get_future().then(lambda _: told(flat.bucket, start, clock_ns()))
        return work

    def wait(self, node: Node) -> None:
        """For the sums without which the node's STEP cannot be."""
        for flat in self._by_node.get(node, ()):
            if self._pending[flat.bucket].steps == {node}:
                self._wait(flat)

    def wait_for_all(self) -> None:
        for flat in self.flats:
            self._wait(flat)

    def complete(self, node: Node) -> list[Flat]:
        """Buckets whose last STEP on this rank this is, their sums awaited."""
        ready = []
        for flat in self._by_node.get(node, ()):
            pending = self._pending[flat.bucket]
            pending.steps.discard(node)
            if not pending.steps:
                self._wait(flat)
                ready.append(flat)
        return ready

    def _wait(self, flat: Flat) -> None:
        pending = self._pending[flat.bucket]
        assert not pending.launches, (
            f"{flat.bucket.names[0]}: an update before the sum of stage {pending.launches}"
        )
        if pending.work is not None:
            pending.work.wait()
            pending.work = None


def groups_of(
    buckets: Sequence[Bucket], rank: int, new_group: Callable[[Sequence[int]], dist.ProcessGroup | None]
) -> dict[Bucket, dist.ProcessGroup]:
    """Every rank makes every communicator, in one order, also those that it is no part of."""
    mine: dict[Bucket, dist.ProcessGroup] = {}
    for bucket in buckets:
        if len(bucket.ranks) > 1:
            group = new_group(bucket.ranks)
            if rank in bucket.ranks:
                assert group is not None
                mine[bucket] = group
    return mine
