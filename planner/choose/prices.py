"""The price of a layout: nanoseconds of a step and bytes that a rank holds, from a `LocalGraph` and the machine.

Time is computing, conversions, and the sums of gradients, one after the other. Bytes are trained parameters with
their gradients and the state of the optimizer, and what one micro-batch keeps for its backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from planner.choose.machine import MeshOnCluster
from planner.choose.work import GroupWork, kept_of, share_of
from planner.layout import MOVES, GroupLayout, LocalGraph, LocalOperation, Mesh, source_of
from planner.spatial import GETITEM, call_of, whole

STATE_NAME = "state:"


@dataclass(frozen=True, kw_only=True)
class LayoutPrice:
    """What a layout takes of a rank: time of a step, and bytes."""

    compute_ns: float
    convert_ns: float  # conversions, forward and backward
    sum_ns: float  # of gradients
    state_bytes: float
    kept_bytes: float

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
    stored: bool = False  # in parts that are gathered for use


def elements(layout: GroupLayout, mesh: Mesh) -> float:
    """Returns the elements of a rank's part of a tensor, on average."""
    return prod(layout.shape) / prod(mesh[a] for cut in layout.cuts if cut is not None for a in cut.axes)


def held_prices(
    layout: GroupLayout, owed: frozenset[int], work: GroupWork, on: MeshOnCluster, *, stored: bool
) -> tuple[HeldPrice, ...]:
    """Returns the ways to hold a trained parameter.

    Args: `layout` is how it is read; along the axes of `owed` each rank makes an addend of its gradient; `stored` says
        whether it may be held in parts along those axes, to be gathered for each pass.
    """
    size = elements(layout, on.mesh)
    axes = tuple(sorted(owed))
    if not axes:
        return (HeldPrice(0.0, size * work.state_bytes),)
    gradient = size * work.gradient_bytes
    ways = [HeldPrice(on.slope_ns("reduce", axes) * gradient, size * work.state_bytes)]
    if stored:
        ranks = prod(on.mesh[axis] for axis in axes)
        gathered = on.slope_ns("gather", axes) * size
        ns = work.micros * gathered * (2 * work.element_bytes + work.gradient_bytes)
        ways.append(HeldPrice(ns, size * work.state_bytes / ranks, stored=True))
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


def price(graph: LocalGraph, work: GroupWork, on: MeshOnCluster, *, stored: bool = False) -> LayoutPrice:
    """Returns the price of a layout of a whole model.

    Args: `stored` says whether parameters are held in parts along all axes along which they are read whole.
    """
    compute = sum(work.ns.get(x.operation.name, 0.0) * share_of(x, graph.mesh) for x in graph.placed)
    convert = sum(
        on.passage_ns(x.steps, work.element_bytes, trained=x.trained) for x in conversions_of(graph)
    )
    sums, states = 0.0, 0.0
    for name in sorted(graph.trained & set(graph.states)):
        layout = graph.states[name]
        way = held_prices(layout, layout.owed, work, on, stored=stored)[-1]
        sums, states = sums + way.ns, states + way.bytes
    kept = kept_bytes(graph, work)
    return LayoutPrice(
        compute_ns=compute * work.micros,
        convert_ns=convert * work.micros,
        sum_ns=sums,
        state_bytes=states,
        kept_bytes=sum(kept.values()),
    )


def conversions_of(graph: LocalGraph):
    """Yields the conversions of tensors that the model makes; parameters are held as they are read."""
    return (x for x in graph.conversions() if not (x.tensor.startswith(STATE_NAME) and x.tensor in graph.trained))


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
