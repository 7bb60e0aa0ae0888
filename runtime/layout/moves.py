"""What a rank does to its part of a tensor in one step of a conversion: the collectives of `planner.layout`.

All of them are made of parts that the ranks of one axis send each other. So one code runs over processes and in one
process, and every element is added up in the order of the ranks. Where an axis has a wire of its own, parts travel in
one collective: single messages of gloo wait up to 4 ms where threads share processors, and collectives do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from time import monotonic_ns

import torch
from torch import Tensor

from planner.layout import DimCut, GroupLayout, Mesh, positions
from runtime.spatial import Wire

Parts = list[Tensor]  # one for each rank of an axis


@dataclass
class ConversionWatch:
    """Counts how long a rank is busy with conversions, in nanoseconds."""

    ns: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Returns a context whose time counts."""
        start = monotonic_ns()
        try:
            yield
        finally:
            self.ns += monotonic_ns() - start


@dataclass(frozen=True)
class CutGroup:
    """The group of ranks that works on one micro-batch, seen from one of them."""

    mesh: Mesh
    wire: Wire
    lines: Mapping[int, Wire] = field(
        default_factory=dict
    )  # of the ranks along an axis alone, in their order
    watch: ConversionWatch = field(default_factory=ConversionWatch, compare=False)

    def __post_init__(self) -> None:
        assert prod(self.mesh) == self.wire.size, (self.mesh, self.wire.size)
        for axis, line in self.lines.items():
            assert (line.rank, line.size) == (self.position[axis], self.mesh[axis])

    def line(self, axis: int) -> Wire | None:
        """Returns the wire of the ranks along an axis alone; None where there is only that of the whole group."""
        return self.wire if self.mesh[axis] == self.wire.size else self.lines.get(axis)

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Returns this rank's coordinate along each axis."""
        return positions(self.mesh)[self.wire.rank]

    def along(self, axis: int) -> list[tuple[int, tuple[int, ...]]]:
        """Returns the ranks that differ from this one along an axis alone, itself among them, with where they are."""
        own = self.position
        return [
            (rank, at)
            for rank, at in enumerate(positions(self.mesh))
            if (*at[:axis], *at[axis + 1 :]) == (*own[:axis], *own[axis + 1 :])
        ]

    def swapped(self, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]], axis: int) -> Parts:
        """Sends one part to each rank of an axis, and returns what each has sent to this one.

        Args: `parts` are in the order of the ranks of the axis; `shapes` are those of what they send.
        """
        line, place = self.line(axis), self.position[axis]
        if line is not None:
            return _over(line, parts, shapes, place)
        members = [rank for rank, _ in self.along(axis)]
        mine = members.index(self.wire.rank)
        found = [torch.empty(tuple(shape), dtype=parts[0].dtype, device=parts[0].device) for shape in shapes]
        others = [i for i in range(len(members)) if i != mine]
        wait = self.wire.exchange(
            [(members[i], parts[i].contiguous()) for i in others], [(members[i], found[i]) for i in others]
        )
        found[mine] = parts[mine]
        wait()
        return found

    def spread(self, part: Tensor, shapes: Sequence[Sequence[int]], axis: int) -> Parts:
        """Sends one part to all ranks of an axis, and returns what each has sent.

        Args: `shapes` are those of what they send.
        """
        return self.swapped([part] * self.mesh[axis], shapes, axis)

    def reduced(self, x: Tensor, axis: int, combine: Callable[[Tensor], Tensor] = torch.Tensor.sum) -> Tensor:
        """Returns the sum of a tensor over the ranks of an axis, the same bits on each of them.

        Args: `combine` takes the addends along a first dimension.
        """
        ranks, flat = self.mesh[axis], _flat(x.detach())
        bounds = [flat.numel() * i // ranks for i in range(ranks + 1)]
        pieces = [flat[a:b] for a, b in itertools.pairwise(bounds)]
        own = pieces[self.position[axis]].shape
        line = self.line(axis)
        if line is None:
            total = _combined(self.swapped(pieces, [own] * ranks, axis), combine)
            return torch.cat(self.spread(total, [piece.shape for piece in pieces], axis)).view(x.shape)
        if ranks == 2:
            return _of_two(line, pieces, combine).view(x.shape)
        sizes, mine = [piece.numel() for piece in pieces], [own.numel()] * ranks
        addends = flat.new_empty(sum(mine))
        line.all_to_all(addends, flat, mine, sizes)
        rows = addends.view(ranks, own.numel())
        rows.copy_(_combined(rows.unbind(), combine))
        made = torch.empty_like(flat)
        line.all_to_all(made, addends, sizes, mine)
        return made.view(x.shape)


def _of_two(line: Wire, pieces: Sequence[Tensor], combine: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the sum of the pieces of both ranks of a line, in less memory than the sum of more ranks takes."""
    mine = line.rank
    total = _combined(_over(line, pieces, [pieces[mine].shape] * 2, mine), combine)
    made = total.new_empty(sum(piece.numel() for piece in pieces))
    found = torch.split(made, [piece.numel() for piece in pieces])
    found[mine].copy_(total)
    coming, going = [0, 0], [0, 0]
    coming[1 - mine], going[1 - mine] = found[1 - mine].numel(), total.numel()
    line.all_to_all(found[1 - mine], total, coming, going)
    return made


def _over(line: Wire, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]], mine: int) -> Parts:
    """Sends a part to each rank of a line, and returns what each has sent; what a rank keeps does not travel.

    Args: `mine` is this rank's place there.
    """
    others = [part for place, part in enumerate(parts) if place != mine]
    sizes = [0 if place == mine else part.numel() for place, part in enumerate(parts)]
    sent = _flat(others[0]) if len(others) == 1 else _in_a_row(others)
    counts = [0 if place == mine else prod(shape) for place, shape in enumerate(shapes)]
    found = parts[mine].new_empty(sum(counts))
    line.all_to_all(found, sent, counts, sizes)
    rows = zip(torch.split(found, counts), shapes, strict=True)
    return [parts[mine] if place == mine else row.view(tuple(x)) for place, (row, x) in enumerate(rows)]


def _flat(x: Tensor) -> Tensor:
    """Returns a tensor as a row without gaps; one that repeats a number, as an expanded gradient does, is written out."""
    return x.reshape(-1).contiguous()


def _in_a_row(parts: Sequence[Tensor]) -> Tensor:
    """Returns a copy of tensors, one after the other; none of them is copied twice."""
    made = parts[0].new_empty(sum(part.numel() for part in parts))
    for row, part in zip(torch.split(made, [part.numel() for part in parts]), parts, strict=True):
        row.view(part.shape).copy_(part)
    return made


def _combined(addends: Sequence[Tensor], combine: Callable[[Tensor], Tensor]) -> Tensor:
    if combine is not torch.Tensor.sum:
        return combine(torch.stack(list(addends)))
    total = addends[0].clone()
    for addend in addends[1:]:
        total += addend
    return total


def moved(
    x: Tensor, what: str, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup
) -> Tensor:
    """Takes one step of a conversion; not differentiable.

    Args: `x` is this rank's part in the layout `source`; `what` is the collective that leads to `target`.
    Returns: this rank's part in the layout `target`.
    """
    with group.watch.running():
        return _MOVES[what](x, source, target, axis, group)


def _none(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    return x


def _gather(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    shapes = [source.local_shape(at, group.mesh) for _, at in group.along(axis)]
    return _merged(group.spread(x, shapes, axis), *_cut(source, axis))


def _own(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    part = _parts(x, target, axis, group)[group.position[axis]]
    return part.clone(memory_format=torch.contiguous_format)  # a view would keep all of the tensor


def _reduce(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    return group.reduced(x, axis)


def _first(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    return x if group.position[axis] == 0 else torch.zeros_like(x)


def _scatter(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    parts = _parts(x, target, axis, group)
    own = parts[group.position[axis]].shape
    return _combined(group.swapped(parts, [own] * len(parts), axis), torch.Tensor.sum)


def _pad(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    shapes = [source.local_shape(at, group.mesh) for _, at in group.along(axis)]
    parts = [x.new_zeros(shape) for shape in shapes]
    parts[group.position[axis]] = x
    return _merged(parts, *_cut(source, axis))


def _exchange(x: Tensor, source: GroupLayout, target: GroupLayout, axis: int, group: CutGroup) -> Tensor:
    dim, cut = _cut(source, axis)
    parts = _parts(x, target, axis, group)
    own = parts[group.position[axis]].shape
    there = [source.local_shape(at, group.mesh)[dim] for _, at in group.along(axis)]
    return _merged(group.swapped(parts, [(*own[:dim], n, *own[dim + 1 :]) for n in there], axis), dim, cut)


_MOVES: dict[str, Callable[[Tensor, GroupLayout, GroupLayout, int, CutGroup], Tensor]] = {
    "none": _none,
    "gather": _gather,
    "own": _own,
    "reduce": _reduce,
    "first": _first,
    "scatter": _scatter,
    "pad": _pad,
    "exchange": _exchange,
}


def region(tensor: Tensor, layout: GroupLayout, group: CutGroup) -> Tensor:
    """Returns this rank's part of a whole tensor.

    Args: `layout` says how it is cut; addends and what is owed do not matter.
    """
    for dim, cut in enumerate(layout.cuts):
        if cut is not None:
            runs = cut.runs(cut.place(group.position, group.mesh))
            tensor = torch.cat([tensor.narrow(dim, low, high - low) for low, high in runs], dim)
    return tensor


def _cut(layout: GroupLayout, axis: int) -> tuple[int, DimCut]:
    dim = layout.dim(axis)
    assert dim is not None
    cut = layout.cuts[dim]
    assert cut is not None
    return dim, cut


def _parts(x: Tensor, layout: GroupLayout, axis: int, group: CutGroup) -> Parts:
    """Returns the parts of a tensor that is whole along an axis, one for each rank of it."""
    dim, cut = _cut(layout, axis)
    places = [cut.place(at, group.mesh) for _, at in group.along(axis)]
    lengths = [cut.points[place + 1] - cut.points[place] for place in places]
    blocks = x.reshape(*x.shape[:dim], cut.blocks, -1, *x.shape[dim + 1 :])
    return [part.flatten(dim, dim + 1) for part in torch.split(blocks, lengths, dim + 1)]


def _merged(parts: Parts, dim: int, cut: DimCut) -> Tensor:
    """Returns the tensor whose parts along an axis these are."""
    if cut.blocks == 1:
        return torch.cat(parts, dim)
    blocks = [x.reshape(*x.shape[:dim], cut.blocks, -1, *x.shape[dim + 1 :]) for x in parts]
    return torch.cat(blocks, dim + 1).flatten(dim, dim + 1)
