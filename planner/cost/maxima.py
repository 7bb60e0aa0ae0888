"""Turns bytes of layers into tables of stages: the most while any layer of a stage runs, for all stages at once.

Tables are over intervals [i, j) of layers, each a candidate stage. Some bytes are there only where a stage goes on
far enough, which a `Growth` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.cost.unit_tables import UnitsHeld, nothing

_NO_LAYER = -(1 << 62)  # bytes; less than any layer of an interval takes


class Growth(NamedTuple):
    """Bytes that are there besides while some layers run, in stages that hold a layer."""

    holding: int  # the layer that a stage must hold
    starts: tuple[int, int]  # half-open: the first layers of the stages
    layers: tuple[int, int]  # half-open: those that run
    bytes: int

    def add_to(self, amounts: IntArray) -> None:
        """Adds the bytes to amounts `[i, layer]`, of stages that start at i."""
        amounts[slice(*self.starts), slice(*self.layers)] += self.bytes


def over_layers(
    amounts: IntArray,
    growing: Sequence[Growth] = (),
    units: Iterator[tuple[int, IntArray]] | None = None,
) -> IntArray:
    """Returns `[i, j]`, the most of amounts[i, l] over the layers l of a stage; 0 where there are no layers.

    Args: `growing` adds to the amounts, and is in the order of the layers that stages must hold. `units` yields for
        each end j of a stage what is there besides: a layer l, and [i, layer from l on]. Before the last two units of
        a stage that changes only where a parameter is used again.
    """
    count, left = len(amounts), list(reversed(growing))
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    amounts = np.where(np.tri(count, k=-1, dtype=np.bool_), _NO_LAYER, amounts)
    held, most, settled = np.zeros_like(amounts), np.full(count, _NO_LAYER), 0
    for j in range(1, count + 1):
        since = settled
        while left and left[-1].holding == j - 1:
            since = min(since, left[-1].layers[0])
            left.pop().add_to(amounts)
        changed = j - 1
        if units is not None:
            changed, more = next(units)
            held[:, changed:j] = more
        if changed < settled:  # it may be less now
            most[:], since = _NO_LAYER, 0
        during = amounts[:j, since:j] + held[:j, since:j]
        settled = max(since, changed)
        if settled > since:
            most[:j] = np.maximum(most[:j], during[:, : settled - since].max(1))
        table[:j, j] = np.maximum(most[:j], during[:, settled - since :].max(1))
    return table


def over_layers_waiting(
    amounts: IntArray,
    waits: Sequence[tuple[int, IntArray]],
    growing: Sequence[Growth] = (),
    units: UnitsHeld = nothing,
) -> IntArray:
    """Returns `over_layers` with what waits while a layer runs, which depends on where the stage ends."""
    table = over_layers(amounts, growing, units())
    for end, more in waits:
        table[:, end:] = over_layers(amounts + more, growing, units())[:, end:]
    return table


def above_saved(amounts: IntArray, least: int = 0) -> IntArray:
    """Returns the amounts, at least `least`, of stages that have layers; 0 elsewhere."""
    return np.triu(np.maximum(amounts, least), 1)
