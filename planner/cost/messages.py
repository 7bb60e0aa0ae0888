"""Which Values go from layer to layer, for messages of any cut.

Which messages many cuts have, and how many bytes each carries.
"""

from __future__ import annotations

from collections.abc import Mapping
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
