"""One rank, ready to run steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from runtime import execute
from runtime.data import Region, Rows, Wanted
from runtime.execute import Interpreter, Tensors, Tracer
from runtime.messages import Transport
from runtime.rank.state import RankState
from runtime.sharding import RankUnits
from runtime.stage import AnyStage, Keys, SharedState
from runtime.update import state_of

Node = tuple[int, int]  # pipe, stage
T = TypeVar("T")


class Evaluate(Protocol):
    """The model as its `eval()` makes it run, for one micro-batch; `metrics` names what comes after the loss."""

    @property
    def metrics(self) -> tuple[str, ...]: ...
    def __call__(self, values: Mapping[int, Tensors]) -> dict[int, dict[str, float]]: ...


@dataclass
class Feed:
    """The batch of the step at hand, by micro-batch."""

    reads: Mapping[int, Sequence[str]]  # stage -> Values of the batch
    device: torch.device
    parts: Mapping[str, Rows] = field(default_factory=dict)  # of what is shared in space
    region: Region = ()
    values: Mapping[int, Tensors] = field(default_factory=dict)
    copies: bool = (
        False  # also where the batch is on the device already: so that memory is counted as elsewhere
    )

    def __call__(self, stage: int, micro: int) -> Tensors:
        names, device, copy = self.reads[stage], self.device, self.copies
        return {name: self.values[micro][name].to(device, non_blocking=True, copy=copy) for name in names}


@dataclass(kw_only=True)
class Rank(RankState):
    """One rank, ready to run steps."""

    stages: dict[Node, AnyStage]
    units: RankUnits
    shared: list[SharedState]
    keys: Keys
    transport: Transport
    interpreter: Interpreter
    tracer: Tracer
    feed: Feed
    make_evaluation: Callable[[int], Evaluate]  # of a micro-batch
    evaluations: dict[int, Evaluate] = field(default_factory=dict)  # by micro-batch

    def step(
        self, step: int, values: Mapping[int, Tensors], run: Callable[[int], None] | None = None
    ) -> dict[int, dict[str, float]]:
        """Runs one training step.

        Args: `values` has the batch by micro-batch of this replica; `run` goes over the interpreter's calls
          instead of its own loop.
        Returns: the losses of micro-batches whose last stage is on this rank; micro-batch over all replicas
          -> loss and count.
        """
        self.keys.step, self.feed.values = step, values
        self.tracer.trim()
        for stage in self.stages.values():
            stage.losses.clear()
        for state in self.shared:
            state.begin()
        self.updater.begin()
        (run or self.interpreter.run)(step)
        self.transport.finish()
        for state in self.shared:
            state.finish()
        return self.losses()

    @property
    def tells(self) -> bool:
        """Returns whether this rank tells its losses: those that share a sample in space have the same ones."""
        return self.mesh.by_rank[self.world.rank].spatial == 0

    def wanted(self) -> Wanted:
        """Returns the samples and Values that this rank reads of a batch."""
        batch, here = self.plan.batch, self.mesh.by_rank[self.world.rank]
        pipes = {pipe for pipe, stage in self.stages if self.feed.reads[stage]}
        pipe_of = self.plan.schedule.pipe_of[: batch.share(here.data)]
        return Wanted(
            micros=tuple(m for m, pipe in enumerate(pipe_of) if pipe in pipes),
            first=batch.first(here.data),
            micro=batch.micro,
            step_samples=batch.samples,
            values=frozenset(name for names in self.feed.reads.values() for name in names),
            parts=self.feed.parts,
            region=self.feed.region,
        )

    def with_peak(self, run: Callable[[], T]) -> tuple[T, int]:
        """Runs a step and measures its peak of memory, which is slow on the host.

        Returns: the result of `run`, and the most bytes in use meanwhile.
        """
        self.feed.copies = True
        try:
            return execute.with_peak(run, self.world.device, self.kept(), self.transport.in_flight())
        finally:
            self.feed.copies = False

    def kept(self) -> list[Tensor]:
        """Returns all tensors that live longer than a step: parameters and their averages, gradients, buffers and
        optimizer state.
        """
        state = state_of(self.updater.optimizers, self.flats).tensors.values()
        flat = [tensor for each in self.flats for tensor in each.kept()]
        held = [*self.parameters.values(), *self.buffers.values(), *self.idle.values()]
        held += self.updater.averages.named().values() if self.updater.averages is not None else ()
        return [*held, *flat, *(tensor for row in state for tensor in row.values())]

    def evaluate(self, values: Mapping[int, Tensors], micro: int) -> dict[int, dict[str, float]]:
        """Computes the losses and metrics of one batch in evaluation mode, of the averaged parameters where there are
        any. No state changes.

        All ranks call this at the same time.
        Args: `values` has the batch by micro-batch of this replica, each of `micro` samples.
        Returns: micro-batch over all replicas -> loss and count, then a sum and a count for each metric.
        Raises: BadInput or BadPlan, where the model cannot be evaluated as its `eval()` makes it run.
        """
        self.updater.settle()
        averages = self.updater.averages
        if averages is not None:
            self.updater.before()  # a checkpoint may be written out of the memory that they change places in
        with averages.in_place() if averages is not None else nullcontext(), self.units.whole():
            return self.evaluation(micro)(values)

    def evaluation(self, micro: int) -> Evaluate:
        """Returns the model in evaluation mode for one micro-batch, which is captured when it is first asked for."""
        if micro not in self.evaluations:
            self.evaluations[micro] = self.make_evaluation(micro)
        return self.evaluations[micro]

    def losses(self) -> dict[int, dict[str, float]]:
        """Returns the losses of the last step: micro-batch over all replicas -> loss and count."""
        found = {}
        for stage in self.stages.values():
            for micro, row in stage.losses.items():
                found[stage.first_micro + micro] = {name: float(tensor) for name, tensor in row.items()}
        return found
