"""Buffers that a forward writes, where several ranks or pipes hold them and each sees some of the micro-batches.

One process would update a running statistic micro-batch after micro-batch: r <- (1 - m) r + m x. That is linear, so
after N micro-batches r_N = (1-m)^N r_0 + sum of (1-m)^(N-1-i) m x_i. Each holder can add up the terms of its own
micro-batches: one sum over the holders gives r_N exactly. Counters are the same with 1 in the place of (1 -
m). Without a momentum r is the average of all batches so far, c of them: c r is a sum, which adds up like a
counter.

Other buffers, such as the vectors of a spectral norm, are updated from parameters and such buffers alone. Each holder
makes all N updates of a step itself: those before a micro-batch of its own, and after its last one those that are
left, while the parameters are still those of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

from planner.capture import CONTEXTS, Decay, StageModule, decays, use_of_states
from planner.model import Buffer
from planner.plan import Place, Plan
from runtime.execute import AUTOCAST
from runtime.stage.graph_edits import graph_of, states_of


class SharedState(Protocol):
    """Buffers that are kept equal over their holders, step by step."""

    def begin(self) -> None:
        """Starts a step."""

    def observe(self, micro: int) -> AbstractContextManager[None]:
        """Surrounds the forward of a micro-batch, by its number within the replica."""

    def finish(self) -> None:
        """Ends a step: the buffers hold what one process would have."""


def shared_states(
    module: StageModule,
    written: Sequence[Buffer],
    buffers: Mapping[str, Tensor],
    synchronised: Collection[str],
    plan: Plan,
    place: Place,
    group: dist.ProcessGroup | None,
    forwards: int,
) -> list[SharedState]:
    """Returns what keeps the written buffers of one stage equal on one rank.

    Some running statistics move for every micro-batch of every replica, others, the `synchronised` ones, once for
    all replicas. Of ranks that see the same statistics, as those that share their samples do, one counts.
    Args: `module` is the stage before its edits, and `written` are the buffers that it writes; `buffers` and
        `synchronised` go by names; `place` is the rank's; `group` has all ranks that hold the stage; `forwards`
        is how many of the stage this rank runs in a step.
    Returns: one value for each kind that there is.
    """
    micros, first_share = plan.batch.micros, place.spatial == 0
    total, first = plan.batch.whole, plan.batch.first(place.data)
    decay = decays(graph_of(module).graph, use_of_states(graph_of(module).graph, states_of(module)))
    summed = {row.name: buffers[row.name] for row in written if not row.update}
    own = {name: buffer for name, buffer in summed.items() if name not in synchronised}
    common = {name: buffer for name, buffer in summed.items() if name in synchronised}
    alone = {row.name: buffers[row.name] for row in written if row.update}
    found: list[SharedState] = []
    if own:
        found.append(
            RunningStatistics(own, decay, total=total, first=first, group=group, counted=first_share)
        )
    if common:
        counted = first_share and place.data == 0
        found.append(RunningStatistics(common, decay, total=micros, first=0, group=group, counted=counted))
    if alone:
        update = OwnUpdates(module, set(alone), AUTOCAST[plan.precision])
        compiled = plan.execution == "compiled"
        found.append(OwnStates(alone, update, total=total, first=first, forwards=forwards, again=compiled))
    return found


def observed(states: Sequence[SharedState]) -> Callable[[int], AbstractContextManager[None]]:
    """Returns a function that observes one forward in all of these states.

    Args: `states` are those of one stage.
    Returns: a function from the number of a micro-batch to a context around its forward.
    """

    @contextmanager
    def around(micro: int) -> Iterator[None]:
        with ExitStack() as stack:
            for one in states:
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


class OwnUpdates:
    """The updates that one forward of a stage makes to buffers that depend on parameters and each other alone."""

    def __init__(self, module: StageModule, names: Collection[str], autocast: torch.dtype | None) -> None:
        """Takes the updates out of the graph of a stage, which stays as it is.

        Args: `module` has its tensors; `names` are the buffers; `autocast` is the type that its forwards run in.
        """
        self._module, self._autocast = module, autocast
        self._inputs, self._names = len(module.inputs), list(states_of(module).values())
        self._run = fx.GraphModule(nn.Module(), _updates_alone(module, names))

    def __call__(self) -> None:
        """Makes the updates of one forward."""
        held = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        states = [held[name] for name in self._names]
        device = states[0].device.type
        with torch.no_grad(), torch.autocast(device, self._autocast) if self._autocast else nullcontext():
            self._run(*[None] * self._inputs, *states)


def _updates_alone(module: StageModule, names: Collection[str]) -> fx.Graph:
    """Returns a copy of a stage's graph that only writes the buffers of these names."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(graph_of(module).graph, copies)
    states = {copies[node]: name for node, name in states_of(module).items()}
    use = use_of_states(graph, states)
    for node in reversed(graph.nodes):
        writes = {use.views[x] for x in use.written_by(node)}
        context = node.op == "placeholder" or node.target in CONTEXTS
        if not (node.users or context or writes.intersection(names)):
            graph.erase_node(node)
    graph.output(())
    return graph


class OwnStates:
    """Buffers of one stage on one rank that each holder updates by itself, once for every micro-batch of a step.

    A step has `total` micro-batches over all replicas; those of this one begin with number `first`, and this rank
    runs `forwards` of them. Where forwards round otherwise than `update`, all updates of a step are made `again` at
    its end, so that holders stay equal to the bit.
    """

    def __init__(
        self,
        buffers: Mapping[str, Tensor],
        update: OwnUpdates,
        *,
        total: int,
        first: int,
        forwards: int,
        again: bool = False,
    ) -> None:
        self._again = again
        self._buffers, self._update = buffers, update
        self._total, self._first, self._forwards = total, first, forwards
        self._start: dict[str, Tensor] = {}
        self._made = self._seen = 0  # updates, and forwards, of the step so far

    def begin(self) -> None:
        """Remembers what the buffers hold before a step."""
        self._start = {name: buffer.clone() for name, buffer in self._buffers.items()}
        self._made = self._seen = 0

    @contextmanager
    def observe(self, micro: int) -> Iterator[None]:
        """Surrounds the forward of a micro-batch: before it come the updates of all earlier ones.

        Args: `micro` is the number within the replica.
        Yields: nothing; meanwhile the buffers hold what one process would have there.
        """
        self._reach(self._first + micro)
        yield
        self._made, self._seen = self._made + 1, self._seen + 1
        if self._seen == self._forwards:
            self._reach(self._total, again=self._again)

    def _reach(self, number: int, *, again: bool = False) -> None:
        if again or number < self._made:  # another pipe of this rank is further
            for name, buffer in self._buffers.items():
                buffer.data.copy_(self._start[name])
            self._made = 0
        for _ in range(number - self._made):
            self._update()
        self._made = number

    def finish(self) -> None:
        """Lets go of what a step needed; its updates are all made."""
        self._start = {}
