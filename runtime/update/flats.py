"""What is updated together: buckets of parameters, each as flat buffers on the ranks that hold it.

A tied weight on two stages, the two ends of a Chimera pair and data-parallel replicas are the same thing
here: a set of ranks. Parameters with the same users' stages share that set, so they share a bucket. A bucket
is one flat buffer whose views are the parameters' `.grad`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from planner.model import ModelGraph
from planner.plan import BY_ELEMENT, owners
from planner.workload import without_numbers
from runtime.layout import Places, TensorParts
from runtime.world import RankMesh

Node = tuple[int, int]  # pipe, stage
Shared = Literal[
    "none", "state", "gradients", "parameters"
]  # what holders share in place of holding all of it


@dataclass(frozen=True, slots=True)
class Bucket:
    """Trained parameters of one type that live on the same stages; every rank derives the same buckets."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    dtype: str
    names: tuple[str, ...]
    shared: Shared = "none"
    rows: tuple[
        tuple[int, ...], ...
    ] = ()  # ranks that hold one copy among them, where that is shared by element
    units: tuple[tuple[str, ...], ...] = ()  # names that are gathered and summed together
    last: tuple[int, ...] = ()  # the ranks that hold the last of several stages

    @property
    def by_element(self) -> bool:
        """Returns whether a rank may hold a part of a parameter's gradient."""
        return self.shared in BY_ELEMENT

    @property
    def owners(self) -> tuple[int, ...]:
        """Returns the ranks that whole parameters are dealt out among, where the optimizer's state is shared.

        The last of several stages has the fewest micro-batches in flight.
        """
        return self.last or self.ranks


def buckets_of(
    graph: ModelGraph,
    stage_of: Sequence[int],
    mesh: RankMesh,
    trained: Collection[str],
    parts: Mapping[str, Places] | None = None,
) -> tuple[Bucket, ...]:
    """Returns the buckets of a model, in an order that is the same on every rank.

    Args: `stage_of` has the stage of each layer; `trained` names the parameters that a training changes; `parts` has
        the ranks of a group that hold the same part of each parameter that is cut.
    Returns: one bucket for each set of stages and type, and for each part of what is cut; names are in the order of
        the first layers that use them, in which the optimizer's state is dealt out.
    """
    found: dict[tuple[tuple[int, ...], str, Places], list[str]] = {}
    first = {row.name: min((graph.index[user] for user in row.users), default=0) for row in graph.parameters}
    for parameter in sorted(graph.parameters, key=lambda row: first[row.name]):
        if parameter.name in trained:
            stages = tuple(sorted({stage_of[graph.index[user]] for user in parameter.users}))
            key = stages, parameter.dtype, (parts or {}).get(parameter.name, ())
            found.setdefault(key, []).append(parameter.name)
    return tuple(
        Bucket(stages, ranks, dtype, tuple(names), last=last if len(stages) > 1 else ())
        for (stages, dtype, places), names in sorted(found.items())
        for ranks, last in zip(
            _holders(mesh, stages, places), _holders(mesh, stages[-1:], places), strict=True
        )
    )


def _holders(mesh: RankMesh, stages: Sequence[int], places: Places) -> list[tuple[int, ...]]:
    """Returns the ranks that hold the same of a parameter: all that hold its stages, or those with the same part."""
    every = mesh.holders(stages)
    if not places:
        return [every]
    return [tuple(rank for rank in every if mesh.by_rank[rank].spatial in same) for same in places]


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's share of a bucket: the parameters that it updates, and who updates the others."""

    names: tuple[str, ...]
    ranges: tuple[
        tuple[int, int, int], ...
    ]  # rank, start, end in the flat buffer; empty where all update all


class OwnPart(NamedTuple):
    """What one rank updates of a parameter: elements `start` to `stop`, as a parameter of the optimizer."""

    name: str
    start: int
    stop: int
    tensor: Tensor
    whole: Tensor | None = None  # that the user's optimizer is made for, where `tensor` then takes its place
    # returns the entries of `tensor` from one as large as `whole`, if those are not `start` to `stop`
    take: Callable[[Tensor], Tensor] | None = None


def for_whole(piece: OwnPart, parts: TensorParts) -> OwnPart:
    """Returns a piece of a part of a parameter that is cut over a group, with what its optimizer is made for.

    Args: `piece` counts the elements of this rank's part; `parts` tells which part of the parameter that is.
    """
    whole = without_numbers(parts.cut[piece.name].shape, piece.tensor)
    return piece._replace(whole=whole, take=partial(_entries, piece, parts))


def _entries(piece: OwnPart, parts: TensorParts, every: Tensor) -> Tensor:
    own = parts.own(piece.name, every).reshape(-1)
    return own[piece.start : piece.stop].clone().view(piece.tensor.shape)


class AnyFlat(Protocol):
    """One bucket on one rank, whatever of it this rank holds."""

    bucket: Bucket
    nodes: frozenset[Node]
    parameters: dict[str, Tensor]
    grads: Tensor  # of what this rank updates, and perhaps more

    def pieces(self) -> Sequence[OwnPart]:
        """Returns what this rank updates, in order."""

    def counted(self, rank: int) -> Iterable[tuple[str, Tensor]]:
        """Returns the gradients that a rank counts for all holders, by name, once they are summed."""

    def renew(self) -> None:
        """Sets gradients to zero for another step."""

    def own_values(self) -> Mapping[str, Tensor]:
        """Returns the elements that this rank keeps up to date, as views by the parameters that they are of."""

    def publish(self) -> None:
        """Makes an update known to whoever reads the parameters of the model; all holders call it at one time."""

    def kept(self) -> Sequence[Tensor]:
        """Returns the buffers that live longer than a step."""


class Flat:
    """One bucket on one rank: its parameters and their gradients, each as one buffer."""

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, Tensor],
        nodes: Iterable[Node],
        rank: int | None = None,
        *,
        parts: TensorParts | None = None,
    ) -> None:
        """Moves the parameters of a bucket into one buffer; they stay views of it, and so do their gradients.

        Args: `parameters` by name have at least those of the bucket; `nodes` are the (pipe, stage) on this
            rank that hold them; `rank` is the bucket's first where it is not given; `parts` tells of which
            parameters this rank has a part.
        """
        self.bucket, self.nodes, self._parts_of = bucket, frozenset(nodes), parts
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
        self.share = share_of(self, bucket.ranks[0] if rank is None else rank, bucket.shared == "state")

    def pieces(self) -> Sequence[OwnPart]:
        """Returns the parameters that this rank updates, or its parts of them."""
        held = ((name, self.parameters[name]) for name in self.share.names)
        own = [OwnPart(name, 0, parameter.numel(), parameter) for name, parameter in held]
        parts = self._parts_of
        cut = parts.cut if parts is not None else {}
        return [for_whole(piece, parts) if parts and piece.name in cut else piece for piece in own]

    def counted(self, rank: int) -> Iterable[tuple[str, Tensor]]:
        """Returns the gradients that a rank counts: all on the first holder, or those that it updates alone.

        Args: `rank` is the one that this bucket is on.
        """
        if not self.share.ranges and self.bucket.ranks[0] != rank:
            return []
        return [(name, self.grads[slice(*self.ranges[name])]) for name in self.share.names]

    def renew(self) -> None:
        """Sets gradients to zero; they are never let go, since they are views."""
        self.grads.zero_()

    def own_values(self) -> Mapping[str, Tensor]:
        """Returns the whole parameters: what another holder updates is handed round."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def publish(self) -> None:
        """Does nothing: the parameters of the model are views of what is updated."""

    def kept(self) -> Sequence[Tensor]:
        """Returns the buffers of parameters and gradients."""
        return [self.values, self.grads]


def share_of(flat: Flat, rank: int, sharded: bool) -> Share:
    """Returns this rank's share of a bucket: neighbouring parameters, about as many elements for each holder.

    Args: without `sharded` every holder updates all of it.
    """
    ranks, names = flat.bucket.owners, flat.bucket.names
    if not sharded or len(flat.bucket.ranks) == 1:
        return Share(names, ())
    owner = owners(ranks, {name: flat.parameters[name].numel() for name in names})
    ranges = []
    for each in ranks:
        own = [flat.ranges[name] for name in names if owner[name] == each]
        if own:
            ranges.append((each, own[0][0], own[-1][1]))
    return Share(tuple(name for name in names if owner[name] == rank), tuple(ranges))


def weakly(method: Callable[..., None], name: str) -> Callable[[Tensor], None]:
    """Returns a hook of a parameter: autograd never lets go of it, and it must not keep a whole run alive.

    Args: `method` is bound to whoever takes the gradients, and gets the parameter's `name` and the parameter.
    Returns: a function that does nothing once nobody else holds that object.
    """
    held = weakref.WeakMethod(method)

    def arrived(parameter: Tensor) -> None:
        if (mine := held()) is not None:
            mine(name, parameter)

    return arrived


def is_plain(value: object) -> bool:
    """Returns whether a state of an optimizer is a number, a flag, a text or a list of them, which a file can hold."""
    if isinstance(value, list | tuple):
        return all(isinstance(part, bool | int | float) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
