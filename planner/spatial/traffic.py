"""Prices a segment on the wire, layer by layer: halos, re-cuts, gathers and reductions, in bytes and messages.

Bytes are those of the batch that the operations were captured with; halos grow with it, reductions of batch norms
do not. Counted is the rank that sends most, one direction at a time as links are full duplex.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import prod
from typing import Final

from planner.errors import BadInput
from planner.model import ModelGraph
from planner.spatial.layout import Layout, check_grid, middle_of, shard_elements
from planner.spatial.operation import INPUT, Ref, read_operations
from planner.spatial.regrid import Grid, Resplit, slides
from planner.spatial.rows_needed import Fetch, sent_elements
from planner.spatial.segment import Placed, Segment, cut_layers, cut_model, ends, worked_around

ELEMENT_BYTES: Final = 4  # where no Value has a gradient; lower precisions send less
# Operations that compute while halos travel.
OVERLAPPED: Final = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.avg_pool")
THIN: Final = 4  # a halo is thin beside a shard with this many times its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The bytes and messages of one layer.

    Halos go back the other way round, except those of samples, whose gradient nobody asks for. `hidden` bytes travel
    while the layer computes, where the backward pass is not split in halves.
    """

    halo_bytes: int = 0  # sent by the busiest rank
    rounds: int = 0  # exchanges one after the other, each with a latency
    hidden_bytes: int = 0
    hidden_rounds: int = 0
    back_bytes: int = 0
    back_rounds: int = 0
    back_hidden_bytes: int = 0
    back_hidden_rounds: int = 0
    gather_bytes: int = 0  # sent by the busiest rank, forward only
    resplit_bytes: int = 0  # sent by the busiest rank forward
    back_resplit_bytes: int = 0
    reductions: int = 0
    reduced_bytes: int = 0  # all-reduced forward
    back_reductions: int = 0
    reduced_backward_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(**{x.name: getattr(self, x.name) + getattr(other, x.name) for x in fields(Traffic)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A layer under a grid, for the rank that has most to do."""

    share: float  # of the layer's output that it computes; 1 where every rank computes it alike
    middle: float  # the share of the rank in the middle of the grid, which is the one that is profiled
    traffic: Traffic
    on_shards: bool  # whether some of the layer at least is computed on shards
    gathered_bytes: int  # of the tensors that are made whole in the layer
    resplit_bytes: int = 0  # of the largest new shards of tensors that are re-split in the layer


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a model under a grid."""

    layers: Mapping[str, Cost]
    values: Mapping[str, float]  # share of each Value that the rank with the largest part holds
    gathered: Mapping[str, str]  # layers that gather a tensor first -> the operation that needs it
    around: frozenset[str]  # those of them behind which others are computed on shards again
    samples: int  # of the batch that bytes are for
    shared: frozenset[str] = frozenset()  # layers computed on whole samples, of which each rank has its own


def price(
    graph: ModelGraph,
    grid: Sequence[int],
    gather_before: Collection[str] = (),
    turns: Mapping[str, Grid] | None = None,
    shares: str = "",
) -> Price:
    """Returns what a model costs under a grid, layer by layer.

    Args: as those of `cut_model`; the model's operations come with its graph.
    Raises: NoRule where an operation cannot be done on shards; BadInput where the grid does not fit.
    """
    operations = read_operations(graph)
    given = [x for x in operations if x.operation == INPUT]
    if not given or not slides(graph):
        raise BadInput("nothing in the model slides over space", where="spatial", allowed="1")
    for operation in given:
        if len(operation.outputs[0]) > 2:
            check_grid(operation.outputs[0], grid, f"'{operation.name}'")
    segment = cut_model(operations, grid, gather_before, turns, shares)
    held = {}
    for value in graph.values:
        layout = segment.layouts[value.name][0]
        size = shard_elements(layout, segment.grids[value.name])
        held[value.name] = size / max(1, prod(layout.shape))
    return Price(
        layers=_layers(segment, element_bytes(graph)),
        values=held,
        gathered=ends(segment),
        around=worked_around(segment),
        samples=given[0].outputs[0][0] * (prod(grid) if shares else 1),
        shared=frozenset(x.operation.layer for x in segment.placed if x.shared),
    )


def element_bytes(graph: ModelGraph) -> int:
    """Returns the bytes of an element of the widest Value with a gradient, by the bits in its type's name."""
    bits = (re.search(r"\d+", value.dtype) for value in graph.values if value.needs_grad)
    return max((int(found[0]) // 8 for found in bits if found), default=ELEMENT_BYTES)


def _layers(segment: Segment, element_bytes: int) -> dict[str, Cost]:
    sent, cut, gathered = traffic(segment, element_bytes), cut_layers(segment), gathered_elements(segment)
    middle, moved = work_shares(segment, middle=True), resplit_elements(segment)
    return {
        layer: Cost(
            share=share,
            middle=middle[layer],
            traffic=sent.get(layer, Traffic()),
            on_shards=layer in cut,
            gathered_bytes=gathered.get(layer, 0) * element_bytes,
            resplit_bytes=moved.get(layer, 0) * element_bytes,
        )
        for layer, share in work_shares(segment).items()
    }


def work_shares(segment: Segment, *, middle: bool = False) -> dict[str, float]:
    """Returns the share of each layer's output elements that one rank makes.

    Args: the rank is the one in the middle of the grid if `middle` is set, else the one that makes most.
    Returns: by layer, a number from 0 to 1.
    """
    local: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for placed in segment.placed:
        grid = segment.grids[placed.operation.name]
        for layout in segment.layouts[placed.operation.name]:
            own = prod(layout.local_shape(middle_of(grid))) if middle else shard_elements(layout, grid)
            local[placed.operation.layer] += own
            total[placed.operation.layer] += prod(layout.shape)
    return {layer: local[layer] / max(1, total[layer]) for layer in total if layer}


def traffic(segment: Segment, element_bytes: int = ELEMENT_BYTES) -> dict[str, Traffic]:
    """Returns the traffic of each layer.

    Returns: by layer; layers that nothing is sent for are missing.
    """
    found: dict[str, Traffic] = defaultdict(Traffic)
    made = {placed.operation.name for placed in segment.placed}
    seen: set[tuple[str, Resplit | None]] = set()
    for placed in segment.placed:
        for cost in _costs(placed, element_bytes, seen, made):
            found[placed.operation.layer] = found[placed.operation.layer] + cost
    return dict(found)


def gathered_elements(segment: Segment) -> dict[str, int]:
    """Returns the elements of the tensors that are made whole for each layer.

    Returns: by layer; a tensor counts once for all its readers.
    """
    found: dict[str, int] = defaultdict(int)
    seen: set[str] = set()
    for placed in segment.placed:
        for name in placed.gathers.keys() - seen:
            seen.add(name)
            found[placed.operation.layer] += prod(placed.inputs[name].shape)
    return dict(found)


def resplit_elements(segment: Segment) -> dict[str, int]:
    """Returns the elements of the new shards that are made for each layer.

    Returns: by layer; a shard counts once for all its readers on one grid.
    """
    found: dict[str, int] = defaultdict(int)
    seen: set[tuple[str, Resplit]] = set()
    made = {placed.operation.name for placed in segment.placed}
    for placed in segment.placed:
        for name, move in placed.resplits.items():
            view = move.source.whole and name not in made  # of what was given whole
            if (name, move) not in seen and not view:
                seen.add((name, move))
                found[placed.operation.layer] += move.made_elements()
    return dict(found)


def _costs(
    placed: Placed, element_bytes: int, seen: set[tuple[str, Resplit | None]], made: Collection[str]
) -> Iterator[Traffic]:
    grid = placed.grid
    for name, move in placed.resplits.items():
        if (name, move) not in seen:
            seen.add((name, move))
            yield _moved(move, element_bytes, back=name in made)
    for name, fetches in placed.gathers.items():
        if (name, None) not in seen:  # a tensor is gathered once for all its readers
            seen.add((name, None))
            sent = sent_elements(placed.inputs[name], fetches, grid)
            yield Traffic(gather_bytes=sent * element_bytes, rounds=len(fetches))
    step = placed.step
    if step is None:
        return
    for argument, fetches in step.fetches.items():
        name = _name(placed, argument)
        sent = sent_elements(placed.inputs[name], fetches, grid) * element_bytes
        if sent:
            rounds = sum(1 for f in fetches if any(f.messages()))
            hidden = _hidden(placed, placed.inputs[name], fetches, grid) * element_bytes
            back = name in made
            yield Traffic(
                halo_bytes=sent,
                rounds=rounds,
                hidden_bytes=hidden,
                hidden_rounds=bool(hidden),
                back_bytes=sent * back,
                back_rounds=rounds * back,
                back_hidden_bytes=hidden * back,
                back_hidden_rounds=bool(hidden) and back,
            )
    if step.reduced:
        yield Traffic(
            reductions=1,
            reduced_bytes=step.reduced * element_bytes,
            back_reductions=bool(step.reduced_backward),
            reduced_backward_bytes=step.reduced_backward * element_bytes,
        )
    for name in placed.operation.reads():
        layout = placed.inputs.get(name)
        if name in made and layout is not None and layout.whole and step.axes:  # its gradient is summed
            yield Traffic(back_reductions=1, reduced_backward_bytes=prod(layout.shape) * element_bytes)


def _moved(move: Resplit, element_bytes: int, *, back: bool) -> Traffic:
    """Returns the traffic of an all-to-all, one round: every rank sends all its messages at once."""
    there = move.sent_elements() * element_bytes
    home = move.back.sent_elements() * element_bytes if back else 0
    return Traffic(resplit_bytes=there, rounds=bool(there), back_resplit_bytes=home, back_rounds=bool(home))


def _hidden(placed: Placed, layout: Layout, fetches: Sequence[Fetch], grid: Sequence[int]) -> int:
    """Returns the elements that travel while their operation computes: the last dimension's, across thin boundaries."""
    moving = [fetch for fetch in fetches if any(fetch.messages())]
    if not placed.operation.operation.startswith(OVERLAPPED) or not moving:
        return 0
    last = moving[-1]
    assert last.points is not None
    halo = max(sum(rows for _, to, rows in last.messages() if to == place) for place in range(len(last.runs)))
    least = min(b - a for a, b in pairwise(last.points))
    return sent_elements(layout, [last], grid) if THIN * halo <= least else 0


def _name(placed: Placed, argument: str) -> str:
    name, _, position = argument.partition(".")
    value = placed.operation.arguments[name]
    if position:
        assert isinstance(value, tuple)
        value = value[int(position)]
    assert isinstance(value, Ref)
    return value.name
