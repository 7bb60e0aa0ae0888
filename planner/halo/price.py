"""What a segment costs on the wire, a layer: halos, re-cuts, gathers and reductions, in bytes and messages.

Bytes are those of the batch that the operations were captured with; halos grow with it, reductions of batch norms
do not. Counted is the rank that sends most, one direction at a time as links are full duplex.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planner.errors import BadInput
from planner.halo.fetch import Fetch
from planner.halo.layout import Layout, check_grid, coordinates
from planner.halo.segment import INPUT, Placed, Segment, cut_model
from planner.halo.text import from_text
from planner.model import ModelGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one layer, one way; the backward pass sends the same halos the other way round."""

    halo_bytes: int = 0  # sent by the busiest rank
    rounds: int = 0  # exchanges one after the other, each with a latency
    gather_bytes: int = 0  # sent by the busiest rank, forward only
    reductions: int = 0
    reduced_bytes: int = 0  # all-reduced forward
    reduced_backward_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            halo_bytes=self.halo_bytes + other.halo_bytes,
            rounds=self.rounds + other.rounds,
            gather_bytes=self.gather_bytes + other.gather_bytes,
            reductions=self.reductions + other.reductions,
            reduced_bytes=self.reduced_bytes + other.reduced_bytes,
            reduced_backward_bytes=self.reduced_backward_bytes + other.reduced_backward_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A layer under a grid, for the rank that has most to do."""

    share: float  # of the layer's output that it computes; 1 where every rank computes it alike
    traffic: Traffic


@dataclass(frozen=True, kw_only=True)
class Price:
    """A model under a grid."""

    layers: Mapping[str, Cost]
    values: Mapping[str, float]  # share of each Value that the rank with the largest part holds
    gathered: Mapping[str, str]  # layers that gather a tensor first -> the operation that needs it
    samples: int  # of the batch that bytes are for


def price(graph: ModelGraph, grid: Sequence[int], gather_before: Collection[str] = ()) -> Price:
    """NoRule where an operation within the segment cannot be done on shards; BadInput if the grid does not fit."""
    operations = tuple(map(from_text, graph.operations))
    given = [x for x in operations if x.operation == INPUT]
    if not given:
        raise BadInput("nothing in the model slides over space", where="spatial", allowed="1")
    for operation in given:
        if len(operation.outputs[0]) > 2:
            check_grid(operation.outputs[0], grid, f"'{operation.name}'")
    segment = cut_model(operations, grid, gather_before)
    sent = traffic(segment, grid)
    shares = work_shares(segment, grid)
    return Price(
        layers={
            layer: Cost(share=share, traffic=sent.get(layer, Traffic())) for layer, share in shares.items()
        },
        values={value.name: _held(segment, value.name, grid) for value in graph.values},
        gathered=ends(segment),
        samples=given[0].outputs[0][0],
    )


def _held(segment: Segment, name: str, grid: Sequence[int]) -> float:
    (layout, *_) = segment.layouts[name]
    return shard_elements(layout, grid) / max(1, prod(layout.shape))


def work_shares(segment: Segment, grid: Sequence[int]) -> dict[str, float]:
    """By layer: elements made by the rank that makes most, over those of the whole."""
    local: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for placed in segment.placed:
        for layout in segment.layouts[placed.operation.name]:
            local[placed.operation.layer] += shard_elements(layout, grid)
            total[placed.operation.layer] += prod(layout.shape)
    return {layer: local[layer] / max(1, total[layer]) for layer in total if layer}


def traffic(segment: Segment, grid: Sequence[int], element_bytes: int = 4) -> dict[str, Traffic]:
    """By layer; layers that nothing is sent for are missing."""
    found: dict[str, Traffic] = defaultdict(Traffic)
    seen: set[str] = set()
    for placed in segment.placed:
        for cost in _costs(placed, grid, element_bytes, seen):
            found[placed.operation.layer] = found[placed.operation.layer] + cost
    return dict(found)


def _costs(placed: Placed, grid: Sequence[int], element_bytes: int, seen: set[str]) -> Iterator[Traffic]:
    for name, fetches in placed.gathers.items():
        if name not in seen:  # a tensor is gathered once for all its readers
            seen.add(name)
            sent = sent_elements(placed.inputs[name], fetches, grid)
            yield Traffic(gather_bytes=sent * element_bytes, rounds=len(fetches))
    step = placed.step
    if step is None:
        return
    for argument, fetches in step.fetches.items():
        sent = sent_elements(_layout(placed, argument), fetches, grid)
        if sent:
            yield Traffic(
                halo_bytes=sent * element_bytes, rounds=sum(1 for f in fetches if any(f.messages()))
            )
    if step.reduced:
        yield Traffic(
            reductions=1,
            reduced_bytes=step.reduced * element_bytes,
            reduced_backward_bytes=step.reduced_backward * element_bytes,
        )


def _layout(placed: Placed, argument: str) -> Layout:
    name, _, position = argument.partition(".")
    value = placed.operation.arguments[name]
    if position:
        assert isinstance(value, tuple)
        value = value[int(position)]
    return placed.inputs[value.name]  # type: ignore[union-attr]


def sent_elements(layout: Layout, fetches: Sequence[Fetch], grid: Sequence[int]) -> int:
    """Of the busiest rank, over all fetches of one tensor; later ones carry the corners of earlier ones."""
    sent = [0] * prod(grid)
    sizes: dict[int, Sequence[int]] = {}
    for fetch in fetches:
        by_place: dict[int, int] = defaultdict(int)
        for sender, _, rows in fetch.messages():
            by_place[sender] += rows
        for rank in range(len(sent)):
            place = coordinates(rank, grid)
            local = list(layout.local_shape(place))
            for dim, rows_of in sizes.items():
                local[dim] = rows_of[place[_axis(fetches, dim)]]
            local[fetch.dim] = by_place[place[fetch.axis]]
            sent[rank] += prod(local)
        sizes[fetch.dim] = fetch.sizes
    return max(sent)


def _axis(fetches: Sequence[Fetch], dim: int) -> int:
    return next(fetch.axis for fetch in fetches if fetch.dim == dim)


def shard_elements(layout: Layout, grid: Sequence[int]) -> int:
    """Elements that the rank with the largest part holds."""
    return max(prod(layout.local_shape(coordinates(rank, grid))) for rank in range(prod(grid)))


def cut_layers(segment: Segment) -> frozenset[str]:
    """Layers that compute on shards, in part at least; the others are computed alike by every rank."""
    return frozenset(placed.operation.layer for placed in segment.placed if placed.step is not None)


def ends(segment: Segment) -> Mapping[str, str]:
    """Layer before whose operation a tensor is gathered -> why, by the operation's name."""
    return {
        placed.operation.layer: placed.operation.operation
        for placed in reversed(segment.placed)
        if placed.gathers
    }
