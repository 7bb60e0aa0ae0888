"""One rank, ready to run steps, and the tensors that it reads from and writes to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from planner.model import Buffer, ModelGraph, Parameter
from planner.plan import Plan
from runtime import execute
from runtime.checkpoint import Checkpoint, CheckpointPart
from runtime.data import Region, Rows, Wanted
from runtime.execute import Interpreter, Tensors, Tracer
from runtime.messages import Transport, stages_of_layers
from runtime.stage import AnyStage, Keys, Scaler, SharedState
from runtime.update import Flat, SavedState, Updater, load_state, state_of
from runtime.world import RankMesh, World

Node = tuple[int, int]  # pipe, stage
T = TypeVar("T")
Evaluate = Callable[[Mapping[int, Tensors]], dict[int, dict[str, float]]]


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
class Rank:
    """One rank, ready to run steps."""

    plan: Plan
    mesh: RankMesh
    world: World
    graph: ModelGraph
    stages: dict[Node, AnyStage]
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    idle: dict[str, Tensor]  # parameters and buffers that no layer uses, on the first rank
    flats: list[Flat]
    updater: Updater
    shared: list[SharedState]
    keys: Keys
    transport: Transport
    interpreter: Interpreter
    tracer: Tracer
    feed: Feed
    make_evaluation: Callable[[], Evaluate]
    scaler: Scaler | None = None

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

    def wanted(self) -> Wanted:
        """Returns the samples and Values that this rank reads of a batch."""
        batch, here = self.plan.batch, self.mesh.by_rank[self.world.rank]
        pipes = {pipe for pipe, stage in self.stages if self.feed.reads[stage]}
        return Wanted(
            micros=tuple(m for m, pipe in enumerate(self.plan.schedule.pipe_of) if pipe in pipes),
            first=here.data * batch.micros,
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
        """Returns all tensors that live longer than a step: parameters, gradients, buffers and optimizer
        state.
        """
        state = state_of(self.updater.optimizers, self.flats).tensors.values()
        flat = [tensor for each in self.flats for tensor in (each.values, each.grads)]
        held = [*self.parameters.values(), *self.buffers.values(), *self.idle.values()]
        return [*held, *flat, *(tensor for row in state for tensor in row.values())]

    def evaluate(self, values: Mapping[int, Tensors]) -> dict[int, dict[str, float]]:
        """Computes the losses of one batch in evaluation mode. No state changes.

        All ranks call this at the same time.
        Args: `values` has the batch by micro-batch of this replica.
        Returns: micro-batch over all replicas -> loss and count.
        Raises: BadInput or BadPlan, where the model cannot be evaluated as its `eval()` makes it run.
        """
        self.updater.settle()
        return self._evaluate(values)

    @cached_property
    def _evaluate(self) -> Evaluate:
        return self.make_evaluation()

    def losses(self) -> dict[int, dict[str, float]]:
        """Returns the losses of the last step: micro-batch over all replicas -> loss and count."""
        found = {}
        for stage in self.stages.values():
            for micro, row in stage.losses.items():
                found[stage.first_micro + micro] = {name: float(tensor) for name, tensor in row.items()}
        return found

    def resume(self, checkpoint: Checkpoint) -> None:
        """Restores the optimizer, the loss scale and the clipping norm from a checkpoint.

        Args: the parameters of `checkpoint` were already loaded when the stages were made.
        """
        if self.scaler is not None and "scale" in checkpoint.facts.extra:
            self.scaler.scale = checkpoint.facts.extra["scale"]
            self.scaler.good_steps = int(checkpoint.facts.extra["good_steps"])
        if self.updater.previous is not None and "norm" in checkpoint.facts.extra:
            self.updater.previous.resume(checkpoint.facts.extra["norm"])
        self.updater.catch_up(checkpoint.facts.step)
        names = [name for flat in self.flats for name in flat.bucket.names]
        load_state(
            self.updater.optimizers, self.flats, SavedState(checkpoint.state(names), checkpoint.settings)
        )

    def extra(self) -> dict[str, float]:
        """Returns the numbers that go on from step to step beside parameters and optimizer state, by name."""
        self.updater.settle()
        previous = self.updater.previous.norm() if self.updater.previous is not None else None
        norm = {} if previous is None else {"norm": previous}
        return norm if self.scaler is None else asdict(self.scaler)

    def part(self) -> CheckpointPart:
        """Returns this rank's part of a checkpoint: the tensors that it holds first, and the optimizer state
        that it updates.
        """
        self.updater.settle()
        saved = state_of(self.updater.optimizers, self.flats)
        for flat in self.flats:
            if not self.updater.shares[flat.bucket].ranges and flat.bucket.ranks[0] != self.world.rank:
                for name in flat.bucket.names:
                    del saved.tensors[name], saved.settings[name]
        here = {**self.parameters, **self.buffers, **self.idle}
        stage_of = stages_of_layers(self.plan, self.graph)
        tensors: dict[str, Tensor] = {}
        rows: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        for row in rows:
            stages = {stage_of[self.graph.index[user]] for user in row.users}
            first = self.mesh.holders(stages)[0] if stages else 0
            if first == self.world.rank:
                tensors[row.name] = here[row.name]
        return CheckpointPart(
            rank=self.world.rank,
            tensors=tensors,
            state=saved.tensors,
            settings=saved.settings,
            moving=frozenset(row.name for row in rows if isinstance(row, Buffer) or row.written),
        )
