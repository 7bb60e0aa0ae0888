"""Running statistics of normalisation layers where several ranks or pipes each see some of the micro-batches.

One process would update them micro-batch after micro-batch: r <- (1 - m) r + m x. That is linear, so after N
micro-batches r_N = (1-m)^N r_0 + sum of (1-m)^(N-1-i) m x_i, and each holder can add up the terms of its own
micro-batches: one sum over the holders gives r_N exactly. Counters are the same with 1 in the place of (1 - m).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from planner.cut import StageModule
from planner.errors import BadInput
from planner.plan import Place, Plan
from runtime.rewrite import ATEN, graph_of, states_of


def decays(module: StageModule, written: set[str]) -> dict[str, float]:
    """Factor by which one forward shrinks what each buffer held before."""
    states = states_of(module)
    found: dict[str, float] = {}
    for node in graph_of(module).graph.nodes:
        if node.target is ATEN.batch_norm.default or node.target is ATEN.instance_norm.default:
            found |= {states[x]: 1 - float(node.args[6]) for x in node.args[3:5] if x in states}
        elif node.target is ATEN.add_.Tensor and node.args[0] in states:
            found[states[node.args[0]]] = 1.0
    strange = sorted(written - found.keys())
    if strange:
        raise BadInput(
            f"the forward pass writes '{strange[0]}', which replicas cannot keep equal",
            allowed="running statistics of batch and instance normalisation, or a plan without replicas",
        )
    return {name: decay for name, decay in found.items() if name in written}


def observers(
    decay: Mapping[str, float],
    buffers: Mapping[str, Tensor],
    synchronised: Collection[str],
    plan: Plan,
    place: Place,
    group: dist.ProcessGroup | None,
) -> list[RunningStatistics]:
    """Of one stage on one rank: what moves for every micro-batch of every replica, and what moves once for all
    replicas. Of ranks that see the same statistics, as those that share their samples do, one counts."""
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
    @contextmanager
    def around(micro: int) -> Iterator[None]:
        with ExitStack() as stack:
            for one in statistics:
                stack.enter_context(one.observe(micro))
            yield

    return around


class RunningStatistics:
    """Of one stage on one rank, over all the micro-batches of a step: `total` of them, over all replicas, of which
    this one's begin with number `first`."""

    def __init__(
        self,
        buffers: Mapping[str, Tensor],
        decay: Mapping[str, float],
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
        self._start = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._sums = {name: torch.zeros_like(buffer) for name, buffer in self._buffers.items()}

    @contextmanager
    def observe(self, micro: int) -> Iterator[None]:
        """Around the forward of a micro-batch: what it alone adds, with its weight."""
        for buffer in self._buffers.values():
            buffer.data.zero_()
        yield
        for name, buffer in self._buffers.items():
            weight = self._decay[name] ** (self._total - 1 - self._first - micro)
            self._sums[name] += buffer if weight == 1.0 else buffer * weight

    def finish(self) -> None:
        for name, buffer in self._buffers.items():
            if self._group is not None:
                if not self._counted:
                    self._sums[name].zero_()
                dist.all_reduce(self._sums[name], group=self._group)
            decay = self._decay[name]
            start = self._start[name]
            start = start if decay == 1.0 else start * decay**self._total
            buffer.data.copy_(start + self._sums[name])
