"""The price by which layouts are searched: a sum over operations, of which a linear program can be made.

Time is computing, conversions, the sums of gradients and updates, one after the other. Bytes are trained parameters
with their gradients and the state of the optimizer, and what one micro-batch keeps for its backward pass. What a list
says of the layouts found is the price of their plans, which is no such sum: see `pareto.py`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

from planner.choose.work import GroupWork
from planner.group import MeshOnCluster, kept_of, share_done
from planner.layout import MOVES, Conversion, GroupLayout, LocalGraph, LocalOperation, Mesh, source_of
from planner.spatial import GETITEM, call_of, whole

STATE_NAME = "state:"


@dataclass(frozen=True, kw_only=True)
class LayoutPrice:
    """What a layout takes of a rank: time of a step, and bytes."""

    compute_ns: float
    convert_ns: float  # conversions, forward and backward
    sum_ns: float  # of gradients, and updates
    state_bytes: float
    kept_bytes: float
    stored: int = 0  # parameters that are held in parts and gathered for use

    @property
    def ns(self) -> float:
        """Returns the nanoseconds of a step."""
        return self.compute_ns + self.convert_ns + self.sum_ns

    @property
    def bytes(self) -> float:
        """Returns the bytes that a rank holds."""
        return self.state_bytes + self.kept_bytes


class HeldPrice(NamedTuple):
    """One way to hold a parameter: what its gradient takes in a step, and its bytes."""

    ns: float
    bytes: float
    stored: tuple[int, ...] = ()  # axes along which it is held in parts that are gathered for use


Again = Literal["", "weights", "all"]  # what is gathered once more for the backward pass, instead of kept


@dataclass(frozen=True, kw_only=True)
class Storing:
    """Where parameters may be held in parts that are gathered for use, and what is gathered again."""

    axes: frozenset[int] = frozenset()
    again: Again = "weights"


def anywhere(mesh: Mesh) -> Storing:
    """Returns that parameters may rest in parts along every axis of a mesh."""
    return Storing(axes=frozenset(range(len(mesh))))


def elements(layout: GroupLayout, mesh: Mesh) -> float:
    """Returns the elements of a rank's part of a tensor, on average."""
    return prod(layout.shape) / prod(mesh[a] for cut in layout.cuts if cut is not None for a in cut.axes)


def held_prices(
    layout: GroupLayout, work: GroupWork, on: MeshOnCluster, storing: Storing
) -> tuple[HeldPrice, ...]:
    """Returns the ways to hold a trained parameter, those with more in parts last.

    Args: `layout` is how it is read; along the axes that do not cut it, gradients are summed, and it may be held in
        parts as far as `storing` allows it.
    """
    size, ways = elements(layout, on.mesh), []
    axes = [axis for axis, ranks in enumerate(on.mesh) if ranks > 1 and layout.kind(axis) != "S"]
    for count in range(len(axes) + 1):
        for stored in itertools.combinations(axes, count):
            if not storing.axes.issuperset(stored) or (stored and len(layout.shape) < 2):
                continue
            part = size / prod(on.mesh[axis] for axis in stored)
            rest = tuple(axis for axis in axes if axis not in stored)
            ns = part * work.update_ns
            ns += on.slope_ns("reduce", rest) * part * work.gradient_bytes if rest else 0.0
            if stored:
                moves = (2 if storing.again else 1) + 1  # gathers, and the sum of gradients
                ns += work.micros * moves * on.ns("gather", stored, size * work.gradient_bytes)
            ways.append(HeldPrice(ns, part * work.state_bytes, stored))
    return tuple(ways)


def demands(local: LocalOperation) -> Iterator[tuple[str, str, GroupLayout]]:
    """Yields the argument, the tensor and the layout of everything that an operation reads in a certain layout."""
    kind = local.operation.operation
    if kind == GETITEM:
        return
    only = ""
    if kind in MOVES and local.operation.reads():
        shapes = {name: whole(()) for name in local.operation.reads()}
        only = source_of(call_of(local.operation, shapes))
    for argument, name in local.reads():
        if not only or argument == only:
            yield argument, name, local.inputs[argument]


def kept_tensors(local: LocalOperation, trained: frozenset[str]) -> Iterator[tuple[str, GroupLayout]]:
    """Yields the tensors that an operation's backward pass reads, each in the layout that it is kept in."""
    names = dict(local.reads())
    inputs, result = kept_of(local.operation, local.operation.name in trained)
    yield from ((names[argument], local.inputs[argument]) for argument in inputs)
    if result:
        yield local.operation.name, local.outputs[0]


NOT_STORED = Storing()


@dataclass(frozen=True)
class PricedParts:
    """What parts of a layout take, on one mesh: many layouts are compared that have most of their parts in common."""

    work: GroupWork
    on: MeshOnCluster
    _done: dict[int, tuple[LocalOperation, float]] = field(default_factory=dict)
    _kept: dict[int, tuple[LocalOperation, tuple[tuple[str, GroupLayout], ...]]] = field(default_factory=dict)
    _moved: dict[object, float] = field(default_factory=dict)
    _held: dict[object, tuple[HeldPrice, ...]] = field(default_factory=dict)
    _prices: dict[object, tuple[LocalGraph, LayoutPrice]] = field(default_factory=dict)

    def price(self, graph: LocalGraph) -> LayoutPrice:
        """Returns the price of a layout, which is reckoned once for all lines that give the same operations."""
        key = tuple(map(id, graph.placed)), tuple(graph.states.items())
        # The graph is kept, so that no other operation gets the place in memory of one of its own.
        if key not in self._prices:
            self._prices[key] = graph, price(graph, self.work, self.on, parts_known=self)
        return self._prices[key][1]

    def done_ns(self, local: LocalOperation) -> float:
        """Returns the nanoseconds of an operation of a rank."""
        found = self._done.get(id(local))
        if found is None or found[0] is not local:
            ns = self.work.time_ns(local.operation.name, share_done(local, self.on.mesh))
            found = self._done[id(local)] = local, ns
        return found[1]

    def kept(self, local: LocalOperation, trained: frozenset[str]) -> tuple[tuple[str, GroupLayout], ...]:
        """Returns the tensors that an operation keeps for its backward pass; what has a gradient is always the same."""
        found = self._kept.get(id(local))
        if found is None or found[0] is not local:
            found = self._kept[id(local)] = local, tuple(kept_tensors(local, trained))
        return found[1]

    def moved_ns(self, found: Conversion, again: bool) -> float:
        """Returns the nanoseconds of a conversion, forward and backward."""
        key = found.steps[0].source, found.target, found.trained, found.gathers_parameter, found.again, again
        if key not in self._moved:
            size, trained, more = self.work.element_bytes, found.trained, int(again)
            if found.gathers_parameter:
                size, trained, more = self.work.gradient_bytes, True, found.again
            self._moved[key] = sum(self.on.passage_ns(found.steps, size, trained=trained, again=more))
        return self._moved[key]

    def held(self, layout: GroupLayout, storing: Storing) -> tuple[HeldPrice, ...]:
        """Returns what `held_prices` says of a trained parameter."""
        key = layout, storing
        if key not in self._held:
            self._held[key] = held_prices(layout, self.work, self.on, storing)
        return self._held[key]


def price(
    graph: LocalGraph,
    work: GroupWork,
    on: MeshOnCluster,
    storing: Storing = NOT_STORED,
    worth: float = 0.0,
    parts_known: PricedParts | None = None,
) -> LayoutPrice:
    """Returns the price of a layout of a whole model.

    Args: `worth` are the nanoseconds that a byte is worth, by which the way to hold each parameter is chosen;
        `parts_known` is kept by a caller that asks for many layouts of one model on one mesh.
    """
    known = parts_known or PricedParts(work, on)
    again = storing.again == "all"
    compute = sum(map(known.done_ns, graph.placed))
    convert = sum(known.moved_ns(x, again) for x in conversions_of(graph))
    sums, states, parts = 0.0, 0.0, 0
    for way in _ways(graph, known, storing, worth).values():
        sums, states, parts = sums + way.ns, states + way.bytes, parts + bool(way.stored)
    return LayoutPrice(
        compute_ns=compute * work.micros,
        convert_ns=convert * work.micros,
        sum_ns=sums,
        state_bytes=states,
        kept_bytes=sum(kept_bytes(graph, work, known).values()),
        stored=parts,
    )


def resting_in(
    graph: LocalGraph, work: GroupWork, on: MeshOnCluster, storing: Storing, worth: float
) -> Mapping[str, tuple[int, ...]]:
    """Returns the axes along which each parameter should rest in parts, by its name among the tensors of a graph.

    Args: all are those of `price`.
    """
    ways = _ways(graph, PricedParts(work, on), storing, worth)
    return {name: way.stored for name, way in ways.items() if way.stored}


def _ways(graph: LocalGraph, known: PricedParts, storing: Storing, worth: float) -> Mapping[str, HeldPrice]:
    """Returns how each trained parameter is held, by what its bytes are worth."""
    return {
        name: min(known.held(graph.states[name], storing), key=lambda x: x.ns + worth * x.bytes)
        for name in sorted(graph.trained & set(graph.states))
    }


def conversions_of(graph: LocalGraph) -> Iterator[Conversion]:
    """Yields the conversions of tensors that the model makes, and of parameters that rest in parts."""
    return (
        x
        for x in graph.conversions()
        if x.gathers_parameter or not (x.tensor.startswith(STATE_NAME) and x.tensor in graph.trained)
    )


def kept_bytes(graph: LocalGraph, work: GroupWork, known: PricedParts | None = None) -> Mapping[str, float]:
    """Returns the bytes that are kept for the backward pass, by the operation that first keeps them."""
    seen: set[tuple[str, GroupLayout]] = set()
    found: dict[str, float] = defaultdict(float)
    for local in graph.placed:
        of_local = kept_tensors(local, graph.trained) if known is None else known.kept(local, graph.trained)
        for name, layout in of_local:
            if name in graph.trained and (name, layout) not in seen:
                seen.add((name, layout))
                found[local.operation.name] += elements(layout, graph.mesh) * work.element_bytes
    return found
