"""Gradients: where they are added up, and the one sum over everybody who holds a parameter.

A tied weight on two stages, the two ends of a Chimera pair and data-parallel replicas are the same thing
here: a set of ranks. Parameters with the same users' stages share that set, so they share a bucket. A bucket
is one flat buffer whose views are the parameters' `.grad`, with one sum a step, launched when the last
contribution is in.

A single process leaves a parameter without a gradient alone (no weight decay, no momentum). A flat gradient
would be zero there, which an optimizer does not leave alone. So only parameters that a gradient of the loss
can reach take part (`trained`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, fx

from planner.capture import Captured
from planner.model import ModelGraph
from runtime.execute import clock_ns
from runtime.update.ordered_sum import Line, add_up
from runtime.world import RankMesh

Node = tuple[int, int]  # pipe, stage


@dataclass(frozen=True, slots=True)
class Bucket:
    """Trained parameters of one type that live on the same stages; every rank derives the same buckets."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]


def buckets_of(
    graph: ModelGraph, stage_of: Sequence[int], mesh: RankMesh, trained: Collection[str]
) -> tuple[Bucket, ...]:
    """Returns the buckets of a model, in an order that is the same on every rank.

    Args: `stage_of` has the stage of each layer; `trained` names the parameters that a training changes.
    Returns: one bucket for each set of stages and type.
    """
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
        """Moves the parameters of a bucket into one buffer; they stay views of it, and so do their gradients.

        Args: `parameters` by name have at least those of the bucket; `nodes` are the (pipe, stage) on this
            rank that hold them.
        """
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
class _State:
    """A bucket's state between two updates."""

    launches: set[Node]  # stages here whose gradients are not complete
    complete: Callable[[], object] | None = None  # waits for the sum under way
    due: bool = False  # launched and not updated
    carried: bool = False  # due since the step before


Told = Callable[[int, int], None]  # when a sum was launched, and when it was complete
OnSum = Callable[[Bucket], Told]


class GradientSync:
    """Follows SYNC and STEP actions; tells when a bucket is summed and may be updated.

    A bucket is launched when all of its stages on this rank have said SYNC, and due from then on: the next
    STEP of one of them updates it. That may be a STEP of the next step, before the first forward that needs
    the bucket. The gradients of that step start at zero then, otherwise when it begins.
    """

    def __init__(
        self,
        flats: Sequence[Flat],
        groups: Mapping[Bucket, dist.ProcessGroup],
        uncounted: Collection[str] = (),
        on_sum: OnSum | None = None,
    ) -> None:
        """Prepares the sums of a rank's buckets.

        Args: `groups` has those of buckets with several holders; gradients of `uncounted` parameters are
            added by another rank that computed the same; `on_sum` is called when a sum is launched, and what
            it returns with begin and end in ns, from a thread of its own.
        """
        self.flats, self._groups, self._uncounted = tuple(flats), groups, frozenset(uncounted)
        self._on_sum = on_sum
        self._lines: dict[dist.ProcessGroup, Line] = {}
        self._by_node: dict[Node, list[Flat]] = {}
        for flat in flats:
            for node in flat.nodes:
                self._by_node.setdefault(node, []).append(flat)
        self._state = {flat.bucket: _State(set(flat.nodes)) for flat in flats}

    def begin(self) -> None:
        """Starts a step: gradients start at zero, but for those that are still to be applied."""
        for flat in self.flats:
            state = self._state[flat.bucket]
            if state.due:
                state.carried = True
            else:
                self._renew(flat)

    def _renew(self, flat: Flat) -> None:
        """Sets gradients to zero; they are never let go, since they are views."""
        flat.grads.zero_()
        self._state[flat.bucket] = _State(set(flat.nodes))

    def launch(self, node: Node) -> None:
        """Notes the SYNC of a stage, and starts the sums of buckets that are complete with it.

        Args: `node` is a (pipe, stage) of this rank.
        """
        for flat in self._by_node.get(node, ()):
            state = self._state[flat.bucket]
            state.launches.discard(node)
            if state.launches:
                continue
            state.due = True
            if flat.bucket in self._groups:
                for name in self._uncounted & flat.ranges.keys():
                    start, end = flat.ranges[name]
                    flat.grads[start:end].zero_()
                state.complete = self._sum(flat)

    def _sum(self, flat: Flat) -> Callable[[], object]:
        """Starts a sum, and returns what waits for it.

        Two numbers have one sum; more are added up in one order, so that it does not matter which parameters
        share a bucket. Between GPUs the order is NCCL's.
        """
        group, on_host = self._groups[flat.bucket], flat.grads.device.type == "cpu"
        ended = self._ended(flat.bucket) if on_host else None
        if on_host and len(flat.bucket.ranks) > 2:
            if group not in self._lines:
                self._lines[group] = Line()
            return self._lines[group].launch(partial(add_up, flat.grads, group), ended).result
        work = dist.all_reduce(flat.grads, group=group, async_op=True)
        assert isinstance(work, dist.Work)
        if ended is not None:
            work.get_future().then(lambda _: ended())
        return work.wait

    def _ended(self, bucket: Bucket) -> Callable[[], None] | None:
        if self._on_sum is None:
            return None
        start, told = clock_ns(), self._on_sum(bucket)
        return lambda: told(start, clock_ns())

    def due(self, node: Node) -> list[Flat]:
        """Returns the buckets that a STEP of a stage updates.

        Args: `node` is a (pipe, stage) of this rank.
        """
        return [flat for flat in self._by_node.get(node, ()) if self._state[flat.bucket].due]

    def left(self) -> list[Flat]:
        """Returns the buckets that are still to be updated."""
        return [flat for flat in self.flats if self._state[flat.bucket].due]

    def wait(self, flats: Iterable[Flat]) -> None:
        """Waits until the sums of these buckets are complete.

        Args: `flats` must have been launched.
        """
        for flat in flats:
            state = self._state[flat.bucket]
            assert not state.launches, (
                f"{flat.bucket.names[0]}: an update before the sum of stage {state.launches}"
            )
            if state.complete is not None:
                state.complete()
                state.complete = None

    def hand_round(self, flat: Flat, owner: int, start: int, end: int) -> None:
        """Broadcasts what one holder of a bucket has updated, after the sums that were launched before.

        Args: `owner` is the rank that updated; `start` and `end` are elements of the bucket's buffer.
        """
        group = self._groups[flat.bucket]
        send = partial(dist.broadcast, flat.values[start:end], owner, group=group)
        if group in self._lines:
            self._lines[group].launch(send).result()
        else:
            send()

    def updated(self, flat: Flat) -> None:
        """Notes the update of a bucket, so that its gradients can start anew.

        Args: `flat` was due.
        """
        state = self._state[flat.bucket]
        state.due = False
        if state.carried:
            self._renew(flat)


def groups_of(
    buckets: Sequence[Bucket],
    mesh: RankMesh,
    rank: int,
    new_group: Callable[[Sequence[int]], dist.ProcessGroup | None],
) -> dict[Bucket, dist.ProcessGroup]:
    """Makes the communicators of all buckets; every rank makes every one, in one order, also those that it is
    no part of.

    Replicas of one pipeline worker launch the same sums in the same order, so one communicator serves all of
    them.
    Args: `new_group` is collective, and returns None to ranks that are no part of the group.
    Returns: the groups of this rank's buckets that have several holders.
    """
    mine: dict[Bucket, dist.ProcessGroup] = {}
    replicas: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    for bucket in buckets:
        if len(bucket.ranks) < 2:
            continue
        alike = len({mesh.by_rank[each].pipeline for each in bucket.ranks}) == 1
        group = replicas[bucket.ranks] if bucket.ranks in replicas else new_group(bucket.ranks)
        if alike:
            replicas[bucket.ranks] = group
        if rank in bucket.ranks:
            assert group is not None
            mine[bucket] = group
    return mine


def trained(captured: Captured) -> frozenset[str]:
    """Returns the trainable parameters that a gradient of the loss can reach.

    Args: `captured` is the whole model.
    Returns: names.
    """
    traced, probe = captured.layout.traced, captured.layout.probes[0]
    live: set[fx.Node] = set(traced.outputs[:1])
    for node in reversed(traced.graph.nodes):
        if node in live:
            live |= {x for x in node.all_input_nodes if _differentiable(probe.value[x])}
    names = {source.name for node, source in traced.sources.items() if node in live}
    return frozenset(row.name for row in captured.graph.parameters if row.trainable and row.name in names)


def _differentiable(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_differentiable(part) for part in value)
    return isinstance(value, Tensor) and value.requires_grad
