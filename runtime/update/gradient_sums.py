"""Gradients: where they are added up, and the one sum over everybody who holds a parameter.

A bucket has one sum a step, launched when the last contribution is in.

A single process leaves a parameter without a gradient alone (no weight decay, no momentum). A flat gradient
would be zero there, which an optimizer does not leave alone. So only parameters that a gradient of the loss
can reach take part (`trained`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch.distributed as dist
from torch import Tensor, fx

from planner.capture import Captured
from planner.sums import SumName, SumsByName, parse, today
from runtime.execute import clock_ns
from runtime.sums import Line, MakeRail, NamedSum, add_up, add_up_parts, named_sum
from runtime.update.flats import AnyFlat, Bucket, Flat, Node
from runtime.world import Rail, RankMesh


class OwnSums(Protocol):
    """A bucket that sums its gradients by itself as they come."""

    def complete(self, uncounted: Collection[str] = ()) -> Callable[[], object]:
        """Starts what is left of a step's sums, and returns what waits for it; others add those of `uncounted`."""


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
        flats: Sequence[AnyFlat],
        groups: Mapping[Bucket, dist.ProcessGroup],
        uncounted: Collection[str] = (),
        on_sum: OnSum | None = None,
        named: Mapping[Bucket, NamedSum] | None = None,
    ) -> None:
        """Prepares the sums of a rank's buckets.

        Args: `groups` has those of buckets with several holders; gradients of `uncounted` parameters are
            added by another rank that computed the same; `on_sum` is called when a sum is launched, and what
            it returns with begin and end in ns, from a thread of its own; `named` has the sums that the plan names.
        """
        self.flats, self._groups, self._uncounted = tuple(flats), groups, frozenset(uncounted)
        self._on_sum, self._named = on_sum, named or {}
        self._lines: dict[dist.ProcessGroup, Line] = {}
        self._by_node: dict[Node, list[AnyFlat]] = {}
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

    def _renew(self, flat: AnyFlat) -> None:
        flat.renew()
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
            if not isinstance(flat, Flat):
                state.complete = self._own_sum(flat)
            elif flat.bucket in self._groups:
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
        ended, add = self._ended(flat.bucket) if on_host else None, partial(add_up, flat.grads, group)
        if flat.bucket in self._named:
            return self._named[flat.bucket].launch(flat.grads, ended)
        if flat.share.ranges and on_host:
            spans = {rank: (start, end) for rank, start, end in flat.share.ranges}
            owned = [spans.get(rank, (0, 0)) for rank in flat.bucket.ranks]
            add = partial(add_up_parts, flat.grads, owned, group)
        if on_host and (flat.share.ranges or len(flat.bucket.ranks) > 2):
            if group not in self._lines:
                self._lines[group] = Line()
            return self._lines[group].launch(add, ended).result
        work = dist.all_reduce(flat.grads, group=group, async_op=True)
        assert isinstance(work, dist.Work)
        if ended is not None:
            work.get_future().then(lambda _: ended())
        return work.wait

    def _own_sum(self, flat: AnyFlat) -> Callable[[], object]:
        """Completes the sums of a bucket that has summed its gradients as they came."""
        ended, complete = self._ended(flat.bucket), cast(OwnSums, flat).complete(self._uncounted)

        def wait() -> None:
            complete()
            if ended is not None:
                ended()

        return wait

    def _ended(self, bucket: Bucket) -> Callable[[], None] | None:
        if self._on_sum is None:
            return None
        start, told = clock_ns(), self._on_sum(bucket)
        return lambda: told(start, clock_ns())

    def due(self, node: Node) -> list[AnyFlat]:
        """Returns the buckets that a STEP of a stage updates.

        Args: `node` is a (pipe, stage) of this rank.
        """
        return [flat for flat in self._by_node.get(node, ()) if self._state[flat.bucket].due]

    def left(self) -> list[AnyFlat]:
        """Returns the buckets that are still to be updated."""
        return [flat for flat in self.flats if self._state[flat.bucket].due]

    def wait(self, flats: Iterable[AnyFlat]) -> None:
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

    def hand_round(self, flat: AnyFlat) -> None:
        """Sends what each holder of a bucket has updated to the others, after the sums that were launched before.

        Args: `flat` is updated on this rank.
        """
        if not isinstance(flat, Flat):
            return  # it gathers what is updated where it is published
        for owner, start, end in flat.share.ranges:
            group = self._groups[flat.bucket]
            send = partial(dist.broadcast, flat.values[start:end], owner, group=group)
            if group in self._lines:
                self._lines[group].launch(send).result()
            else:
                send()

    def updated(self, flat: AnyFlat) -> None:
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
    Returns: the groups of this rank's buckets that have several holders, but of those shared by element.
    """
    mine: dict[Bucket, dist.ProcessGroup] = {}
    replicas: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    for bucket in buckets:
        if len(bucket.ranks) < 2 or bucket.by_element:
            continue
        alike = len({mesh.by_rank[each].pipeline for each in bucket.ranks}) == 1
        group = replicas[bucket.ranks] if bucket.ranks in replicas else new_group(bucket.ranks)
        if alike:
            replicas[bucket.ranks] = group
        if rank in bucket.ranks:
            assert group is not None
            mine[bucket] = group
    return mine


def named_sums(
    groups: Mapping[Bucket, dist.ProcessGroup],
    sums: SumsByName | None,
    rail: Callable[[Sequence[int], str, str], Rail],
) -> dict[Bucket, NamedSum]:
    """Makes the sums that a plan names; buckets that one communicator serves share one sum of a name.

    Args: `groups` are those of this rank, in the order of buckets; `rail` makes the communicator of a part, from its
        ranks in order, a name that is new to them, and the interface of a network card, "" for that of messages.
    Returns: the sums of buckets that one stage has and that nobody shares, where they are not what a run does anyway.
    """
    found: dict[Bucket, NamedSum] = {}
    known: dict[tuple[dist.ProcessGroup, SumName], NamedSum] = {}
    made = Counter[tuple[int, ...]]()
    for bucket, group in groups.items() if sums is not None else ():
        assert sums is not None
        if len(bucket.stages) > 1 or bucket.shared != "none":
            continue
        name, ranks = parse(sums.by[bucket.stages[0]]), bucket.ranks
        if name == today(len(ranks)):
            continue
        if (group, name) not in known:
            made[ranks] += 1
            new = _rails(rail, ranks, f"{ranks} {name} {made[ranks]}", sums.cards)
            known[group, name] = named_sum(name, len(ranks), group, new)
        found[bucket] = known[group, name]
    return found


def _rails(
    rail: Callable[[Sequence[int], str, str], Rail],
    ranks: Sequence[int],
    named: str,
    cards: Sequence[str],
) -> MakeRail:
    def part_of(order: Sequence[int], part: int) -> Rail:
        card = cards[part % len(cards)] if cards else ""
        return rail([ranks[place] for place in order], f"{named} {part}", card)

    return part_of


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
