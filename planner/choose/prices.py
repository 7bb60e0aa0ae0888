"""The price by which layouts are searched: a sum over operations, of which a linear program can be made.

Time is computing, conversions, the sums of gradients and updates, one after the other. Bytes are trained parameters
with their gradients and the state of the optimizer, and what one micro-batch keeps for its backward pass. What a list
says of the layouts found is the price of their plans, which is no such sum: see `pareto.py`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


def price(
    graph: LocalGraph, work: GroupWork, on: MeshOnCluster, storing: Storing = NOT_STORED, worth: float = 0.0
) -> LayoutPrice:
    """Returns the price of a layout of a whole model.

    Args: `worth` are the nanoseconds that a byte is worth, by which the way to hold each parameter is chosen.
    """
    again = storing.again == "all"
    compute = sum(work.time_ns(x.operation.name, share_done(x, graph.mesh)) for x in graph.placed)
    convert = sum(
        sum(
            on.passage_ns(x.steps, work.gradient_bytes, trained=True, again=x.again)
            if x.gathers_parameter
            else on.passage_ns(x.steps, work.element_bytes, trained=x.trained, again=again)
        )
        for x in conversions_of(graph)
    )
    sums, states, parts = 0.0, 0.0, 0
    for way in _ways(graph, work, on, storing, worth).values():
        sums, states, parts = sums + way.ns, states + way.bytes, parts + bool(way.stored)
    return LayoutPrice(
        compute_ns=compute * work.micros,
        convert_ns=convert * work.micros,
        sum_ns=sums,
        state_bytes=states,
        kept_bytes=sum(kept_bytes(graph, work).values()),
        stored=parts,
    )


def resting_in(
    graph: LocalGraph, work: GroupWork, on: MeshOnCluster, storing: Storing, worth: float
) -> Mapping[str, tuple[int, ...]]:
    """Returns the axes along which each parameter should rest in parts, by its name among the tensors of a graph.

    Args: all are those of `price`.
    """
    ways = _ways(graph, work, on, storing, worth)
    return {name: way.stored for name, way in ways.items() if way.stored}


def _ways(
    graph: LocalGraph, work: GroupWork, on: MeshOnCluster, storing: Storing, worth: float
) -> Mapping[str, HeldPrice]:
    """Returns how each trained parameter is held, by what its bytes are worth."""
    return {
        name: min(held_prices(graph.states[name], work, on, storing), key=lambda x: x.ns + worth * x.bytes)
        for name in sorted(graph.trained & set(graph.states))
    }


def conversions_of(graph: LocalGraph) -> Iterator[Conversion]:
    """Yields the conversions of tensors that the model makes, and of parameters that rest in parts."""
    return (
        x
        for x in graph.conversions()
        if x.gathers_parameter or not (x.tensor.startswith(STATE_NAME) and x.tensor in graph.trained)
    )


def kept_bytes(graph: LocalGraph, work: GroupWork) -> Mapping[str, float]:
    """Returns the bytes that are kept for the backward pass, by the operation that first keeps them."""
    seen: set[tuple[str, GroupLayout]] = set()
    found: dict[str, float] = defaultdict(float)
    for local in graph.placed:
        for name, layout in kept_tensors(local, graph.trained):
            if name in graph.trained and (name, layout) not in seen:
                seen.add((name, layout))
                found[local.operation.name] += elements(layout, graph.mesh) * work.element_bytes
    return found
