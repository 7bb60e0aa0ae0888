"""One rank, ready to run steps, and the tensors that it reads from and writes to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from torch import Tensor, nn

from planner.model import Buffer, ModelGraph, Parameter
from planner.plan import Plan
from runtime import execute
from runtime.checkpoint import Checkpoint, CheckpointPart, Elements
from runtime.data import Feed, Wanted
from runtime.draws import Keys
from runtime.execute import Interpreter, Tensors, Tracer
from runtime.kept import KeptFlat, fitting
from runtime.layout import TensorParts
from runtime.messages import Transport, stages_of_layers
from runtime.sharding import Joining, RankUnits
from runtime.stage import AnyStage, Scaler, SharedState
from runtime.update import AnyFlat, Flat, OwnPart, SavedState, Updater, load_state, state_of
from runtime.world import RankMesh, World

Node = tuple[int, int]  # pipe, stage
T = TypeVar("T")


class Evaluate(Protocol):
    """The model as its `eval()` makes it run, for one micro-batch; `metrics` names what comes after the loss."""

    @property
    def metrics(self) -> tuple[str, ...]: ...
    def __call__(self, values: Mapping[int, Tensors]) -> dict[int, dict[str, float]]: ...


@dataclass(kw_only=True)
class Rank:
    """One rank, ready to run steps, and the tensors that it reads from and writes to a checkpoint."""

    plan: Plan
    mesh: RankMesh
    world: World
    graph: ModelGraph
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    idle: dict[str, Tensor]  # parameters and buffers that no layer uses, on the first rank
    flats: list[AnyFlat]
    parts: TensorParts | None  # where ranks of a group hold parts of parameters
    joining: Joining | None  # of these, for a checkpoint
    updater: Updater
    stages: dict[Node, AnyStage]
    units: RankUnits
    shared: list[SharedState]
    keys: Keys
    transport: Transport
    interpreter: Interpreter
    tracer: Tracer
    feed: Feed
    make_evaluation: Callable[[int], Evaluate]  # of a micro-batch
    scaler: Scaler | None = None
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
        optimizers = self.updater.optimizers
        whole = [flat for flat in self.flats if isinstance(flat, Flat)]
        names = [name for flat in whole for name in flat.bucket.names]
        load_state(optimizers, whole, SavedState(self._saved(checkpoint, names), checkpoint.settings))
        parts = [flat for flat in self.flats if not isinstance(flat, Flat)]
        pieces = [piece for flat in parts for piece in flat.pieces()]
        if self.updater.averages is not None:
            self.updater.averages.load(self._averages(checkpoint, names, pieces))
        states = {piece.name: self._state_of(checkpoint, piece) for piece in pieces}
        load_state(optimizers, parts, SavedState(states, checkpoint.settings))
        self.updater.given = dict.fromkeys(optimizers, str(checkpoint.folder))

    def _saved(self, checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Returns the saved state of parameters, of the entries or the parts that are kept here."""
        here, saved = self._indices(), checkpoint.kept(names)
        own = self.parts.own if self.parts is not None else lambda _, x: x
        found = {
            name: fitting(
                state,
                here.get(name),
                self.graph.parameter[name].shape,
                saved=saved.get(name),
                where=str(checkpoint.folder),
            )
            for name, state in checkpoint.state(names).items()
        }
        return {name: {key: own(name, x) for key, x in state.items()} for name, state in found.items()}

    def _state_of(self, checkpoint: Checkpoint, piece: OwnPart) -> dict[str, Tensor]:
        """Returns the saved state of some elements of a parameter, or of a part of one."""
        if self.parts is not None and piece.name in self.parts.cut:
            (found,) = self._saved(checkpoint, [piece.name]).values() or ({},)
            return {key: self._here(piece, x) for key, x in found.items()}
        return {
            key: found.view(piece.tensor.shape) if alike else found
            for key, (found, alike) in checkpoint.state_of(self._elements(piece)).items()
        }

    def _here(self, piece: OwnPart, tensor: Tensor) -> Tensor:
        """Returns the elements of a piece from what belongs to this rank's part of a parameter."""
        if tensor.shape != self.parameters[piece.name].shape:
            return tensor
        return tensor.reshape(-1)[piece.start : piece.stop].clone().view(piece.tensor.shape)

    def _averages(
        self, checkpoint: Checkpoint, names: Sequence[str], pieces: Sequence[OwnPart]
    ) -> dict[str, Tensor]:
        """Returns the saved averages of whole parameters, or of their parts here, and of pieces of others."""
        cut = self.parts.cut if self.parts is not None else {}
        own = self.parts.own if self.parts is not None else lambda _, x: x
        apart = {piece.name: piece for piece in pieces if piece.name in cut}
        saved = checkpoint.averages([*names, *apart])
        whole = {name: own(name, x) for name, x in saved.items()}
        whole |= {name: self._here(piece, whole[name]) for name, piece in apart.items() if name in whole}
        rest = [piece for piece in pieces if piece.name not in cut]
        found = checkpoint.averages_of(map(self._elements, rest))
        return whole | {p.name: found[p.name].view(p.tensor.shape) for p in rest if p.name in found}

    def _indices(self) -> dict[str, Tensor]:
        """Returns the kept entries of the pruned parameters of this rank."""
        pruned = (flat.indices for flat in self.flats if isinstance(flat, KeptFlat))
        return {name: index for found in pruned for name, index in found.items()}

    def _elements(self, piece: OwnPart) -> Elements:
        return Elements(piece.name, self.graph.parameter[piece.name].shape, piece.start, piece.stop)

    def extra(self) -> dict[str, float]:
        """Returns the numbers that go on from step to step beside parameters and optimizer state, by name."""
        self.updater.settle()
        previous = self.updater.previous.norm() if self.updater.previous is not None else None
        norm = {} if previous is None else {"norm": previous}
        averages = self.updater.averages
        kept = {} if averages is None else {"ema": averages.decay}
        return kept | (norm if self.scaler is None else asdict(self.scaler))

    def part(self) -> CheckpointPart:
        """Returns this rank's part of a checkpoint: the tensors that it holds first, and the optimizer state
        that it updates.

        All ranks call this at the same time.
        """
        self.updater.settle()
        saved = state_of(self.updater.optimizers, self.flats)
        tensors = self._first_held()
        averages = self.updater.averages.named() if self.updater.averages is not None else {}
        cut = frozenset[str]()
        if self.joining is not None:
            cut = self.joining.join(self.flats, self.parameters, tensors, saved, averages)
        elements: dict[str, Elements] = {}
        for flat in self.flats:
            counted = {name for name, _ in flat.counted(self.world.rank)}
            shared = not isinstance(flat, Flat)
            for name in flat.bucket.names if shared and not cut.issuperset(flat.bucket.names) else ():
                if 0 not in self.graph.parameter[name].shape:  # an empty one has no pieces
                    tensors.pop(name, None)
            for piece in (piece for piece in flat.pieces() if piece.name not in cut):
                if piece.name not in counted:
                    saved.tensors.pop(piece.name, None)
                    saved.settings.pop(piece.name, None)
                elif shared:
                    tensors[piece.name] = piece.tensor
                    elements[piece.name] = self._elements(piece)
        return CheckpointPart(
            rank=self.world.rank,
            averages={name: x for name, x in averages.items() if name in tensors},
            tensors=tensors,
            state=saved.tensors,
            settings=saved.settings,
            elements=elements,
            kept={name: index for name, index in self._indices().items() if name in saved.tensors},
            moving=frozenset(row.name for row in self.graph.buffers)
            | frozenset(row.name for row in self.graph.parameters if row.written),
        )

    def _first_held(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of which this rank is the first holder."""
        here = {**self.parameters, **self.buffers, **self.idle}
        apart = [flat for flat in self.flats if isinstance(flat, KeptFlat)]
        updated = {name: partial(flat.whole, name) for flat in apart for name in flat.dense}
        stage_of = stages_of_layers(self.plan, self.graph)
        found: dict[str, Tensor] = {}
        rows: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        for row in rows:
            stages = {stage_of[self.graph.index[user]] for user in row.users}
            first = self.mesh.holders(stages)[0] if stages else 0
            if first == self.world.rank:
                found[row.name] = updated[row.name]() if row.name in updated else here[row.name]
        return found
