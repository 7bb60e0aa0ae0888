"""Running statistics of normalisation layers where several ranks or pipes each see some of the micro-batches.

One process would update them micro-batch after micro-batch: r <- (1 - m) r + m x. That is linear, so after N
micro-batches r_N = (1-m)^N r_0 + sum of (1-m)^(N-1-i) m x_i. Each holder can add up the terms of its own
micro-batches: one sum over the holders gives r_N exactly. Counters are the same with 1 in the place of (1 -
m). Without a momentum r is the average of all batches so far, c of them: c r is a sum, which adds up like a
counter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from planner.capture import StageModule, average_batch_norm, named_arguments, use_of_states
from planner.errors import BadInput
from planner.plan import Place, Plan
from runtime.stage.graph_edits import ATEN, graph_of, states_of


class Decay(NamedTuple):
    """The factor of what a buffer held that one forward leaves; of an average it is the factor of its sum."""

    factor: float = 1.0
    counter: str = ""  # of an average: what counts the batches in it


def decays(module: StageModule, written: set[str]) -> dict[str, Decay]:
    """Returns the decay of each buffer that the forward of a stage writes.

    Args: `written` names the buffers that it writes.
    Returns: decays by the names of buffers.
    Raises: BadInput where a buffer is no running statistic, or is read as well, since its holders cannot keep
        it equal.
    """
    states = states_of(module)
    found: dict[str, Decay] = {}
    for node in graph_of(module).graph.nodes:
        if node.target is average_batch_norm:
            given = named_arguments(node.target, node.args, node.kwargs)
            count = Decay(counter=states[given["count"]])  # type: ignore[index]
            found |= {states[x]: count for x in node.args[3:5]}
        elif node.target is ATEN.batch_norm.default or node.target is ATEN.instance_norm.default:
            for name in (states[x] for x in node.args[3:5] if x in states and node.args[5]):
                found[name] = Decay(found.get(name, Decay()).factor * (1 - float(node.args[6])))
        elif node.target is ATEN.add_.Tensor and node.args[0] in states:
            found[states[node.args[0]]] = Decay()
    read = use_of_states(
        graph_of(module).graph, states
    ).read  # while a step runs they hold a part of what they are
    strange = sorted(name for name in written if name not in found or name in read)
    if strange:
        also = " and reads" if strange[0] in read else ""
        raise BadInput(
            f"the forward pass writes{also} '{strange[0]}', which the ranks or pipes that hold it cannot keep equal",
            where=strange[0].rpartition(".")[0] or "the model",
            allowed="running statistics of batch and instance normalisation; or data: 1, spatial: 1 and no Chimera",
        )
    return {name: decay for name, decay in found.items() if name in written}


def observers(
    decay: Mapping[str, Decay],
    buffers: Mapping[str, Tensor],
    synchronised: Collection[str],
    plan: Plan,
    place: Place,
    group: dist.ProcessGroup | None,
) -> list[RunningStatistics]:
    """Returns the running statistics of one stage on one rank that must be added up over ranks.

    Some move for every micro-batch of every replica, others, the `synchronised` ones, once for all replicas.
    Of ranks that see the same statistics, as those that share their samples do, one counts.
    Args: `decay` and `buffers` go by names; `place` is the rank's; `group` has all ranks that hold the stage.
    Returns: one value for each kind that there is.
    """
    micros, first_share = plan.batch.micros, place.spatial == 0
    own = {name: buffers[name] for name in decay if name not in synchronised}
    common = {name: buffers[name] for name in decay if name in synchronised}
    total, first = micros * plan.axes.data, micros * place.data
    found = []
    if own:
        found.append(
            RunningStatistics(own, decay, total=total, first=first, group=group, counted=first_share)
        )
    if common:
        counted = first_share and place.data == 0
        found.append(RunningStatistics(common, decay, total=micros, first=0, group=group, counted=counted))
    return found


def observed(statistics: Sequence[RunningStatistics]) -> Callable[[int], AbstractContextManager[None]]:
    """Returns a function that observes one forward in all of these statistics.

    Args: `statistics` are those of one stage.
    Returns: a function from the number of a micro-batch to a context around its forward.
    """

    @contextmanager
    def around(micro: int) -> Iterator[None]:
        with ExitStack() as stack:
            for one in statistics:
                stack.enter_context(one.observe(micro))
            yield

    return around


class RunningStatistics:
    """Buffers of one stage on one rank, whose changes are added up over all micro-batches of a step.

    A step has `total` micro-batches over all replicas; those of this one begin with number `first`.
    """

    def __init__(
        self,
        buffers: Mapping[str, Tensor],
        decay: Mapping[str, Decay],
        *,
        total: int,
        first: int,
        group: dist.ProcessGroup | None,
        counted: bool,
    ) -> None:
        self._counted = counted
        self._buffers, self._decay, self._group = buffers, decay, group
        self._total, self._first = total, first
        self._start: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Remembers what the buffers hold before a step, and starts their sums at zero."""
        self._start = {name: self._summed(name).clone() for name in self._buffers}
        self._sums = {name: torch.zeros_like(buffer) for name, buffer in self._buffers.items()}

    @contextmanager
    def observe(self, micro: int) -> Iterator[None]:
        """Surrounds the forward of a micro-batch, and adds what it alone contributes, with its weight.

        Args: `micro` is the number within the replica.
        Yields: nothing; meanwhile the buffers start at zero.
        """
        for buffer in self._buffers.values():
            buffer.data.zero_()
        yield
        for name in self._buffers:
            weight = self._decay[name].factor ** (self._total - 1 - self._first - micro)
            added = self._summed(name)
            self._sums[name] += added if weight == 1.0 else added * weight

    def _summed(self, name: str) -> Tensor:
        """Returns a buffer, or, for an average, the sum that it is made of."""
        buffer, count = self._buffers[name], self._decay[name].counter
        return buffer * self._buffers[count] if count else buffer

    def finish(self) -> None:
        """Adds up the sums of the group at the end of a step, and leaves in the buffers what one process would have."""
        for name, buffer in self._buffers.items():
            if self._group is not None:
                if not self._counted:
                    self._sums[name].zero_()
                dist.all_reduce(self._sums[name], group=self._group)
            decay = self._decay[name].factor
            start = self._start[name]
            start = start if decay == 1.0 else start * decay**self._total
            buffer.data.copy_(start + self._sums[name])
        for name, buffer in self._buffers.items():
            if self._decay[name].counter:
                buffer.data.div_(self._buffers[self._decay[name].counter])
