"""Which Values go from layer to layer, for messages of any cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost_moving import BoolArray
from planner.intervals import IntArray
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
