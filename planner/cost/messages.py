"""Which Values go from layer to layer, for messages of any cut.

Which messages many cuts have, and how many bytes each carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.model import ModelGraph, Value


@dataclass(frozen=True, kw_only=True)
class Edges:
    """One row a (Value, consumer): where it was made, the consumer before (or the producer), the consumer."""

    value: IntArray
    made: IntArray
    previous: IntArray
    consumer: IntArray
    bytes: IntArray
    backward: BoolArray  # a gradient flows back

    def between(self, low: int, high: int) -> Edges:
        """Those that some boundary from `low` to `high` cuts."""
        chosen = (self.previous < high) & (self.consumer >= low)
        return Edges(
            value=self.value[chosen],
            made=self.made[chosen],
            previous=self.previous[chosen],
            consumer=self.consumer[chosen],
            bytes=self.bytes[chosen],
            backward=self.backward[chosen],
        )


def edges(graph: ModelGraph, size_of: Mapping[str, int]) -> Edges:
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for number, value in enumerate(graph.values):
        rows += _edges_of(graph, number, value, size_of[value.name])
    table = np.array(rows, np.int64).reshape(-1, 6).T
    value_, made, previous, consumer, size, backward = table
    return Edges(
        value=value_,
        made=made,
        previous=previous,
        consumer=consumer,
        bytes=size,
        backward=backward.astype(np.bool_),
    )


def _edges_of(
    graph: ModelGraph, number: int, value: Value, size: int
) -> list[tuple[int, int, int, int, int, bool]]:
    if not value.producer:
        return []
    made = graph.index[value.producer]
    users = sorted(graph.index[name] for name in set(value.consumers))
    return [
        (number, made, previous, user, size, value.needs_grad)
        for previous, user in zip([made, *users], users, strict=False)
    ]


def hop_bytes(edges: Edges, layers: int, cuts: IntArray) -> tuple[IntArray, IntArray]:
    """The cells of [act or grad, sender, receiver] that any cut has, and their bytes in each cut: activations
    straight to every later stage that reads them, gradients from each reading stage to the one before it that reads
    or made the Value."""
    depth = cuts.shape[1] - 1
    stage = stage_of(cuts, layers)
    made, before, here = stage[:, edges.made], stage[:, edges.previous], stage[:, edges.consumer]
    row, act = np.nonzero(here > before)
    forward = made[row, act] * depth + here[row, act]
    back = edges.backward[act]
    backward = (depth * depth + here[row, act] * depth + before[row, act])[back]
    cell = np.concatenate([forward, backward])
    owner = np.concatenate([row, row[back]])
    weight = np.concatenate([edges.bytes[act], edges.bytes[act[back]]])
    present: BoolArray = np.zeros(2 * depth * depth, np.bool_)
    present[cell] = True
    cells = np.flatnonzero(present)
    column = np.cumsum(present)[cell] - 1
    flat = np.bincount(owner * len(cells) + column, weights=weight, minlength=len(cuts) * len(cells))
    return cells, flat.astype(np.int64).reshape(len(cuts), len(cells))


def stage_of(cuts: IntArray, layers: int) -> IntArray:
    """[cut, layer]"""
    opens: IntArray = np.zeros((len(cuts), layers + 1), np.int64)
    for p in range(1, cuts.shape[1] - 1):
        opens[np.arange(len(cuts)), cuts[:, p]] += 1
    return opens.cumsum(1)[:, :layers]


# One stage: layers from `first` to `last`, by their positions


def entering_values(graph: ModelGraph, layers: Sequence[str]) -> list[Value]:
    """From other stages or from the batch."""
    made = {name for layer in layers for name in graph.layer[layer].outputs}
    read = {name for layer in layers for name in graph.layer[layer].inputs}
    return [graph.value[name] for name in sorted(read - made)]


def last_use(graph: ModelGraph, value: Value) -> int:
    return max((graph.index[name] for name in value.consumers), default=-1)


def passing_values(graph: ModelGraph, first: int, at: int) -> list[Value]:
    """Made before layer `at`, and read after it."""
    made = [graph.value[name] for layer in graph.layers[first:at] for name in layer.outputs]
    return [value for value in made if last_use(graph, value) > at]


def added_values(graph: ModelGraph, keepers: Mapping[str, int], first: int, at: int) -> list[Value]:
    """Of what passes by layer `at`, that of which it adds a gradient to that of a later reader: both are there beside
    the sum, for which there is room only where the layer lets go of the Value itself."""
    name = graph.layers[at].name
    passing = passing_values(graph, first, at)
    return [v for v in passing if name in v.consumers and v.needs_grad and keepers.get(v.name) != at]


def early_values(graph: ModelGraph, first: int, at: int, last: int) -> list[Value]:
    """From before `first`, and read after layer `at` of the same stage: a gradient of it waits. Twice where that layer
    adds another one to it."""
    name = graph.layers[at].name
    made = [graph.value[x] for layer in graph.layers[:first] for x in layer.outputs]
    late = [v for v in made if v.needs_grad and any(at < graph.index[x] <= last for x in v.consumers)]
    return late + [v for v in late if name in v.consumers]


def leaving_values(graph: ModelGraph, first: int, last: int) -> list[Value]:
    made = [graph.value[name] for layer in graph.layers[first : last + 1] for name in layer.outputs]
    return [value for value in made if last_use(graph, value) > last]


def returning_values(
    graph: ModelGraph, entering: list[Value], leaving: list[Value], last: int
) -> list[Value]:
    """Gradients that come from later stages: of what was sent to them, and of inputs that they read as well."""
    shared = [value for value in entering if value.producer and last_use(graph, value) > last]
    return [value for value in (*leaving, *shared) if value.needs_grad]


def is_read_at(graph: ModelGraph, value: Value, at: int) -> bool:
    return any(graph.index[name] == at for name in value.consumers)


def crossing_values(graph: ModelGraph, first: int) -> list[Value]:
    """Made before a layer, and read by it or later ones; those that gradients come back of."""
    made = [graph.value[name] for layer in graph.layers[:first] for name in layer.outputs]
    return [value for value in made if value.needs_grad and last_use(graph, value) >= first]


def is_far(graph: ModelGraph, value: Value, first: int) -> bool:
    """The stage that made it need not be the one before."""
    return bool(value.producer) and value.needs_grad and graph.index[value.producer] < first - 1
