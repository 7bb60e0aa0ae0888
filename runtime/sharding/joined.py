"""Parts of parameters of which replicas share elements, or the optimizer's state: brought together for a checkpoint.

Replicas tell each other in a text which elements each has, and what its optimizer keeps beside them. The tensors
follow, one broadcast each. Then the group puts its parts together (`Joining`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.layout import TensorParts
from runtime.sharding.flats import SharedFlat
from runtime.update import AnyFlat, Bucket, Flat, SavedState, Settings

_VALUE, _AVERAGE, _STATE = "value", "average", "state/"  # keys of what a rank has of a parameter


@dataclass(frozen=True)
class Joining:
    """Puts parameters together of which ranks of a group hold parts, with their state, on the rank that writes them."""

    groups: Mapping[Bucket, dist.ProcessGroup]  # of buckets that several ranks hold whole
    parts: TensorParts
    writers: frozenset[int]  # the ranks of the groups that write
    rank: int

    def join(
        self,
        flats: Sequence[AnyFlat],
        parameters: Mapping[str, Tensor],
        tensors: MutableMapping[str, Tensor],
        saved: SavedState,
        averages: MutableMapping[str, Tensor],
    ) -> frozenset[str]:
        """Changes what this rank writes, from parts to wholes; all ranks call this at the same time.

        Args: `flats` and `parameters` are this rank's; `tensors` are those that it writes, with the state that it has
            `saved` and the `averages` that it keeps.
        Returns: the names of the parameters that ranks have in parts.
        """
        names = [name for flat in flats for name in flat.bucket.names if name in self.parts.cut]
        held: dict[str, Tensor] = dict(parameters)
        for flat in flats:
            if self.parts.cut.keys() & set(flat.bucket.names):
                self._collect(flat, held, saved, averages)
        if self.rank in self.writers:
            self.parts.join(names, held, tensors, saved.tensors, saved.settings)
            averages.update({n: self.parts.whole(n, averages[n]) for n in names if n in averages})
        for name in names if self.rank not in self.writers else ():
            saved.tensors.pop(name, None)
            saved.settings.pop(name, None)
        return frozenset(names)

    def _collect(
        self,
        flat: AnyFlat,
        held: MutableMapping[str, Tensor],
        saved: SavedState,
        averages: MutableMapping[str, Tensor],
    ) -> None:
        """Brings together what replicas share of a bucket of parts, on those that write."""
        shared = isinstance(flat, SharedFlat)
        group = flat.row if isinstance(flat, SharedFlat) else self.groups.get(flat.bucket)
        ranks = flat.ranks if isinstance(flat, SharedFlat) else flat.bucket.ranks
        whole = isinstance(flat, Flat) and not flat.share.ranges
        if whole or group is None or not self.writers.intersection(ranks):
            return
        rows = {}
        for piece in flat.pieces():
            row = {_STATE + key: x for key, x in saved.tensors.get(piece.name, {}).items()}
            row |= {_VALUE: piece.tensor.detach()} if shared else {}
            row |= {_AVERAGE: averages[piece.name]} if shared and piece.name in averages else {}
            settings = saved.settings.get(piece.name, {})
            rows[piece.name] = PartRow(piece.start, piece.stop, piece.tensor.shape, row, settings)
        shapes = {name: tuple(x.shape) for name, x in flat.parameters.items()}
        for name, found in joined(rows, shapes, group, keep=self.rank in self.writers).items():
            own = dict(found.tensors)
            held[name] = own.pop(_VALUE, held[name])
            averages.update({name: own.pop(_AVERAGE)} if _AVERAGE in own else {})
            saved.tensors[name] = {key.removeprefix(_STATE): x for key, x in own.items()}
            saved.settings[name] = found.settings


class PartRow(NamedTuple):
    """What one rank has of a parameter: elements `start` to `stop`, and whatever belongs to them."""

    start: int
    stop: int
    shape: tuple[int, ...]  # of these elements
    tensors: Mapping[str, Tensor]  # by key; one of another shape is the same for all elements
    settings: Settings


def joined(
    rows: Mapping[str, PartRow],
    shapes: Mapping[str, tuple[int, ...]],
    group: dist.ProcessGroup,
    *,
    keep: bool,
) -> dict[str, PartRow]:
    """Returns all elements of parameters of which each rank of a group has some; collective.

    Args: `rows` are this rank's, by parameter; `shapes` are of all elements of each, in one order on all ranks; a rank
        that does not `keep` them gets nothing.
    """
    own = {name: _described(row) for name, row in rows.items()}
    told = [json.loads(text) for text in exchanged(json.dumps(own), group)]
    found: dict[str, PartRow] = {}
    for name, shape in shapes.items():
        holders = {place: row[name] for place, row in enumerate(told) if name in row}
        first = next(iter(holders.values()))
        tensors = {key: _gathered(name, key, holders, rows, shape, group) for key in first["tensors"]}
        if keep:
            found[name] = PartRow(0, prod(shape), shape, tensors, first["settings"])
    return found


def _described(row: PartRow) -> dict[str, Any]:
    tensors = {
        key: [str(x.dtype).removeprefix("torch."), [*x.shape], tuple(x.shape) == tuple(row.shape)]
        for key, x in row.tensors.items()
    }
    return {"start": row.start, "stop": row.stop, "tensors": tensors, "settings": row.settings}


def _gathered(
    name: str,
    key: str,
    holders: Mapping[int, dict[str, Any]],
    rows: Mapping[str, PartRow],
    shape: tuple[int, ...],
    group: dist.ProcessGroup,
) -> Tensor:
    """Returns a tensor from the elements that each holder has of it, or from the first one where all have the same."""
    dtype, own, alike = next(iter(holders.values()))["tensors"][key]
    made = torch.empty(shape if alike else own, dtype=getattr(torch, dtype), device=_device(group))
    for place, row in holders.items():
        span = made.view(-1)[row["start"] : row["stop"]] if alike else made.view(-1)
        if place == dist.get_rank(group):
            span.copy_(rows[name].tensors[key].reshape(-1))
        dist.broadcast(span, dist.get_global_rank(group, place), group=group)
        if not alike:
            break
    return made


def exchanged(text: str, group: dist.ProcessGroup) -> list[str]:
    """Returns the texts of all ranks of a group, in their order; collective."""
    ranks, device = dist.get_world_size(group), _device(group)
    raw = torch.tensor([*text.encode()], dtype=torch.uint8, device=device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(raw)], device=device), group=group)
    most = max(int(size) for size in sizes)
    every = [raw.new_zeros(most) for _ in range(ranks)]
    dist.all_gather(every, torch.cat([raw, raw.new_zeros(most - len(raw))]), group=group)
    return [bytes(row[: int(n)].tolist()).decode() for row, n in zip(every, sizes, strict=True)]


def _device(group: dist.ProcessGroup) -> torch.device:
    """Returns the device whose tensors a group carries."""
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
