"""One bucket on one rank of several that share its gradients, or its parameters too.

Ranks lie in rows and columns. A row holds one copy of the bucket: the data replicas of one pipeline worker, or some
of them. Rank i of a row has part i of every unit, so ranks of a column have the same part. Gradients of a unit are
summed over the row as soon as the last of them is there, and over the column once a step. That is how replicas in
several nodes, both pipes of a Chimera pair and stages with a tied weight come to the same sum.

A unit is padded to a multiple of the row's length. Its parts are equal then, whatever its parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.capture import counted_here
from runtime.layout import TensorParts
from runtime.sharding.wires import Wires, gather_parts, scatter_sum, stand_in
from runtime.sums import add_up
from runtime.update import Bucket, OwnPart, for_whole, weakly

Node = tuple[int, int]  # pipe, stage


class Load(Protocol):
    """Loads tensors of a checkpoint by name, whole or in part."""

    def parameters(self, names: Sequence[str]) -> Mapping[str, Tensor]: ...  # and buffers
    def region(self, name: str, start: int, stop: int) -> Tensor: ...  # elements of a tensor laid flat


@dataclass(eq=False)
class FlatUnit:
    """The parameters of a bucket that are gathered and summed together, as they are just now on this rank."""

    names: tuple[str, ...]
    ranges: dict[str, tuple[int, int]]  # in the unit
    part: int  # elements of each rank
    offset: int  # of this rank's part, in its buffers
    whole: Tensor | None = None  # all parts, padded; kept where parameters are not shared
    coming: Future[None] | None = None  # from when it is asked for until its parameters lie in `whole`
    grads: Tensor | None = None  # gradients of the backward at hand
    arrived: Counter[str] = field(default_factory=Counter)  # gradients since the last sum


class SharedFlat:
    """One bucket on one rank: the part of it that this rank updates, and all of it while that is needed."""

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, Tensor],
        nodes: Iterable[Node],
        rank: int,
        wires: Wires,
        groups: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None],
        region: Callable[[str, int, int], Tensor],
        parts: TensorParts | None = None,
    ) -> None:
        """Lays out this rank's part of the bucket.

        Args: `parameters` are whole where gradients are shared, and stand-ins where parameters are; `groups` are
            those of the row and the column; `region` returns elements `start` to `stop` of a parameter; `parts` tells
            of which parameters all of this is about the part that this rank's group gives it.
        """
        self.bucket, self.nodes, self._parts = bucket, frozenset(nodes), parts
        self.parameters = {name: parameters[name] for name in bucket.names}
        self.wires, (row, self._column) = wires, groups
        assert row is not None
        self.row = row
        self.ranks = next(ranks for ranks in bucket.rows if rank in ranks)
        self.place, self._first = self.ranks.index(rank), self.ranks == bucket.rows[0]
        self.lets_go = bucket.shared == "parameters"
        self.units = self._laid_out()
        like = next(iter(self.parameters.values()))
        total = sum(unit.part for unit in self.units)
        self.values = torch.zeros(total if self.lets_go else 0, dtype=like.dtype, device=like.device)
        self.grads = torch.zeros(total, dtype=like.dtype, device=like.device)
        self.unit_of = {name: unit for unit in self.units for name in unit.names}
        self._name_of = {id(parameter): name for name, parameter in self.parameters.items()}
        self.on_summed: Callable[[FlatUnit], None] = lambda unit: None
        self.uses: Counter[str] = Counter(dict.fromkeys(bucket.names, 1))  # gradients of a backward
        self.owed = set[str]()  # parameters whose gradients are all worked out by weight halves
        # whether an input half runs, whose few gradients wait for those of the weight half
        self.in_half = False
        self._sending: Future[None] | None = None
        self._pieces = [piece for unit in self.units for piece in self._cut(unit, region)]
        for name, parameter in self.parameters.items():
            parameter.grad = None
            parameter.register_post_accumulate_grad_hook(weakly(self._accumulated, name))  # type: ignore[no-untyped-call]

    def _laid_out(self) -> list[FlatUnit]:
        units, offset = [], 0
        for names in self.bucket.units:
            sizes = [self.parameters[name].numel() for name in names]
            ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
            part = -(-ends[-1] // len(self.ranks))
            units.append(FlatUnit(names, dict(zip(names, pairwise(ends), strict=True)), part, offset))
            offset += part
        return units

    @torch.no_grad()
    def _cut(self, unit: FlatUnit, region: Callable[[str, int, int], Tensor]) -> Iterable[OwnPart]:
        """Yields this rank's pieces of a unit, as parameters of as many dims as those that they are of."""
        low = self.place * unit.part
        high = low + unit.part
        if not self.lets_go:
            unit.whole = self.grads.new_zeros(unit.part * len(self.ranks))
            for name, (start, end) in unit.ranges.items():
                unit.whole[start:end].copy_(self.parameters[name].reshape(-1))
                self.parameters[name].data = unit.whole[start:end].view(self.parameters[name].shape)
        own = self.own_part(unit)
        grads = self.grads[unit.offset : unit.offset + unit.part]
        for name, (start, end) in unit.ranges.items():
            first, last = max(start, low), min(end, high)
            if first >= last:
                continue
            here = slice(first - low, last - low)
            if self.lets_go:
                own[here].copy_(region(name, first - start, last - start).reshape(-1))
            shape = self.parameters[name].shape
            cut = shape if last - first == end - start else (*[1] * (len(shape) - 1), last - first)
            piece = nn.Parameter(own[here].view(cut))
            piece.grad = grads[here].view(cut)
            found = OwnPart(name, first - start, last - start, piece)
            if self._parts is not None and name in self._parts.cut:
                found = for_whole(found, self._parts)
            elif last - first < end - start:
                found = found._replace(whole=self.parameters[name])
            yield found

    def own_part(self, unit: FlatUnit) -> Tensor:
        """Returns this rank's values of a unit, padded."""
        if self.lets_go:
            return self.values[unit.offset : unit.offset + unit.part]
        assert unit.whole is not None
        return unit.whole[self.place * unit.part : (self.place + 1) * unit.part]

    def pieces(self) -> Sequence[OwnPart]:
        """Returns what this rank updates, in order."""
        return self._pieces

    def counted(self, rank: int) -> Iterable[tuple[str, Tensor]]:
        """Returns the gradients of this rank's pieces where it is in the first row."""
        if not self._first:
            return []
        return [(p.name, p.tensor.grad.view(-1)) for p in self._pieces if p.tensor.grad is not None]

    def renew(self) -> None:
        """Sets gradients to zero for another step."""
        self.grads.zero_()

    def own_values(self) -> Mapping[str, Tensor]:
        """Returns this rank's pieces."""
        return {piece.name: piece.tensor.detach() for piece in self._pieces}

    def publish(self) -> None:
        """Gets what other ranks have updated; where parameters are let go, their next use gets it."""
        if self.lets_go:
            return
        for unit in self.units:  # one after the other: each holds a copy of its part meanwhile
            assert unit.whole is not None
            part = self.own_part(unit).clone()
            self.wires.launch(self.row, partial(gather_parts, unit.whole, part, self.row)).result()

    def kept(self) -> Sequence[Tensor]:
        """Returns the buffers that live longer than a step."""
        whole = [] if self.lets_go else [unit.whole for unit in self.units if unit.whole is not None]
        return [self.values, self.grads, *whole]

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        """Takes a gradient from autograd, which also calls for a parameter that a layer gave none to."""
        if name not in self.owed and parameter.grad is not None:
            self._arrive(name)

    def _arrive(self, name: str) -> None:
        """Takes a gradient of a parameter; the first of a unit opens its buffer, the last has the unit summed."""
        unit = self.unit_of[name]
        if unit.grads is None and not self.in_half:
            self._open(unit)
        unit.arrived[name] += 1
        if all(unit.arrived[each] >= self.uses[each] for each in unit.names):
            self._sum(unit)

    def paid(self, parameter: Tensor) -> None:
        """Takes a gradient that a weight half has worked out, and not autograd.

        Args: `parameter` is any; those of others are left alone.
        """
        name = self._name_of.get(id(parameter))
        if name is not None:
            self._arrive(name)

    def _open(self, unit: FlatUnit) -> None:
        """Makes the buffer of a unit's gradients, with those in it that have arrived by themselves."""
        unit.grads = self.grads.new_zeros(unit.part * len(self.ranks))
        for name, (start, end) in unit.ranges.items():
            parameter = self.parameters[name]
            view = unit.grads[start:end].view(parameter.shape)
            if parameter.grad is not None:
                view.add_(parameter.grad)
            parameter.grad = view

    def _sum(self, unit: FlatUnit) -> None:
        """Starts the sum of a unit over the row; at most one is under way."""
        if unit.grads is None:
            self._open(unit)
        grads, unit.grads = unit.grads, None
        assert grads is not None
        for name in unit.names:
            unit.arrived[name] = max(0, unit.arrived[name] - self.uses[name])
            self.parameters[name].grad = None
        self.on_summed(unit)
        self.settle()
        own = self.grads[unit.offset : unit.offset + unit.part]
        self._sending = self.wires.launch(self.row, partial(scatter_sum, grads, own, self.row))

    def settle(self) -> None:
        """Waits until no gradients of a unit are on their way."""
        if self._sending is not None:
            self._sending.result()
            self._sending = None

    def complete(self, uncounted: Collection[str] = ()) -> Callable[[], object]:
        """Starts what is left of a step's sums, and returns what waits for it.

        Args: gradients of `uncounted` parameters are added by another row, whose ranks computed the same.
        """
        for unit in self.units:
            if unit.grads is not None or any(self.parameters[name].grad is not None for name in unit.names):
                self._sum(unit)
            unit.arrived.clear()
        self.settle()
        if self._column is None:
            return lambda: None
        for piece in self._pieces:
            if piece.name in uncounted and piece.tensor.grad is not None:
                piece.tensor.grad.zero_()
        return self.wires.launch(self._column, partial(add_up, self.grads, self._column)).result

    def gather(self, unit: FlatUnit) -> None:
        """Starts to gather a unit, if nobody has; all ranks of the row do so in one order.

        Its memory is taken when its turn on the wire comes: what was launched before has then given its own back.
        """
        if unit.whole is None and unit.coming is None:
            unit.coming = self.wires.launch(self.row, partial(self._fetch, unit, counted_here()))

    def _fetch(self, unit: FlatUnit, count: Callable[[Tensor], None]) -> None:
        unit.whole = self.values.new_empty(unit.part * len(self.ranks))
        count(unit.whole)
        gather_parts(unit.whole, self.own_part(unit), self.row)

    def have(self, unit: FlatUnit) -> Tensor:
        """Returns a unit whole, with its parameters in it."""
        self.gather(unit)
        if unit.coming is not None:
            unit.coming.result()
            unit.coming = None
            assert unit.whole is not None
            for name, (start, end) in unit.ranges.items():
                self.parameters[name].data = unit.whole[start:end].view(self.parameters[name].shape)
        assert unit.whole is not None
        return unit.whole

    def let_go(self, unit: FlatUnit) -> None:
        """Lets a unit go, but for this rank's part."""
        if unit.coming is not None:
            unit.coming.result()
        if unit.whole is None:
            return
        unit.whole = unit.coming = None
        for name in unit.names:
            self.parameters[name].data = stand_in(self.parameters[name])
