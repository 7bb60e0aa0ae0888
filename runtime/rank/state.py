"""What one rank reads from a checkpoint and writes to one: the state that goes on from step to step."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from planner.model import Buffer, ModelGraph, Parameter
from planner.plan import Plan
from runtime.checkpoint import Checkpoint, CheckpointPart, Elements
from runtime.kept import KeptFlat, fitting
from runtime.layout import TensorParts
from runtime.messages import stages_of_layers
from runtime.sharding import PartRow, SharedFlat, joined
from runtime.stage import Scaler
from runtime.update import AnyFlat, Bucket, Flat, OwnPart, SavedState, Updater, load_state, state_of
from runtime.world import RankMesh, World

_VALUE, _AVERAGE = "value", "average"  # beside the state of an optimizer, whose keys begin with `state/`


@dataclass(kw_only=True)
class RankState:
    """The state of one rank that goes on from step to step, by the names of the model's tensors."""

    plan: Plan
    mesh: RankMesh
    world: World
    graph: ModelGraph
    parameters: dict[str, nn.Parameter]
    buffers: dict[str, Tensor]
    idle: dict[str, Tensor]  # parameters and buffers that no layer uses, on the first rank
    flats: list[AnyFlat]
    groups: Mapping[Bucket, dist.ProcessGroup]  # of buckets that several ranks hold whole
    parts: TensorParts | None  # where ranks of a group hold parts of parameters
    updater: Updater
    scaler: Scaler | None = None

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
        cut = self._join(tensors, saved, averages)
        elements: dict[str, Elements] = {}
        for flat in self.flats:
            counted = {name for name, _ in flat.counted(self.world.rank)}
            shared = not isinstance(flat, Flat)
            for name in flat.bucket.names if shared and not cut.issuperset(flat.bucket.names) else ():
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

    def _join(
        self, tensors: MutableMapping[str, Tensor], saved: SavedState, averages: MutableMapping[str, Tensor]
    ) -> frozenset[str]:
        """Puts parameters together of which ranks of a group hold parts, with their state, on the rank that writes them.

        Args: all three change.
        Returns: the names of these parameters.
        """
        if self.parts is None:
            return frozenset()
        names = [name for flat in self.flats for name in flat.bucket.names if name in self.parts.cut]
        held: dict[str, Tensor] = dict(self.parameters)
        for flat in self.flats:
            if self.parts.cut.keys() & set(flat.bucket.names):
                self._collect(flat, held, saved, averages)
        if self._writes:
            self.parts.join(names, held, tensors, saved.tensors, saved.settings)
            averages.update({n: self.parts.whole(n, averages[n]) for n in names if n in averages})
        for name in names if not self._writes else ():
            saved.tensors.pop(name, None)
            saved.settings.pop(name, None)
        return frozenset(names)

    @property
    def _writes(self) -> bool:
        """Returns whether this rank's group is one of those that write."""
        return self.mesh.by_rank[self.world.rank].data == 0

    def _collect(
        self,
        flat: AnyFlat,
        held: MutableMapping[str, Tensor],
        saved: SavedState,
        averages: MutableMapping[str, Tensor],
    ) -> None:
        """Brings together what replicas share of a bucket of parts, on those that write."""
        group = flat.row if isinstance(flat, SharedFlat) else self.groups.get(flat.bucket)
        ranks = flat.ranks if isinstance(flat, SharedFlat) else flat.bucket.ranks
        whole = isinstance(flat, Flat) and not flat.share.ranges
        if whole or group is None or all(self.mesh.by_rank[rank].data for rank in ranks):
            return
        rows = {}
        for piece in flat.pieces():
            row = {f"state/{key}": x for key, x in saved.tensors.get(piece.name, {}).items()}
            if isinstance(flat, SharedFlat):
                row[_VALUE] = piece.tensor.detach()
                row |= {_AVERAGE: averages[piece.name]} if piece.name in averages else {}
            rows[piece.name] = PartRow(
                piece.start, piece.stop, piece.tensor.shape, row, saved.settings.get(piece.name, {})
            )
        shapes = {name: tuple(x.shape) for name, x in flat.parameters.items()}
        for name, found in joined(rows, shapes, group, keep=self._writes).items():
            own = dict(found.tensors)
            held[name] = own.pop(_VALUE, held[name])
            averages.update({name: own.pop(_AVERAGE)} if _AVERAGE in own else {})
            saved.tensors[name] = {key.removeprefix("state/"): x for key, x in own.items()}
            saved.settings[name] = found.settings

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
