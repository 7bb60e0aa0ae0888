"""`stage_bytes` for every cut at once: what one micro-batch takes in a stage of any consecutive layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.intervals import IntArray, Rectangles
from planner.model import ModelGraph
from planner.profile import LayerCost
from planner.stage_bytes import storages


@dataclass(frozen=True, kw_only=True)
class Moving:
    """`[i, j]` is the stage of layers i..j-1; names as in StageBytes."""

    workspace: IntArray
    splitting: IntArray
    weighing: IntArray
    arriving: IntArray
    sent: IntArray
    returning: IntArray
    far: IntArray


def moving(
    graph: ModelGraph,
    costs: Sequence[LayerCost],
    size_of: Mapping[str, int],
    *,
    saved: IntArray,
    entered: IntArray,
) -> Moving:
    messages = _messages(graph, costs, size_of)
    arriving, sent, returning, far, passing = (rectangles.table for rectangles in messages)
    held = np.concatenate([[0], np.cumsum([cost.held_bytes for cost in costs])])
    work = np.array([cost.workspace_bytes for cost in costs], np.int64)
    during = saved[:-1, 1:] - entered[:-1, 1:] + passing[:-1, :-1] + work
    highest = entered + _over_layers(during)
    halved = entered + held + _over_layers(during - held[1:])
    weighed = _over_layers(np.broadcast_to(held[1:] + work, during.shape)) - held
    workspace = _on_top(highest - saved)
    return Moving(
        workspace=workspace,
        splitting=_on_top(halved - saved - workspace),
        weighing=_on_top(weighed - workspace),
        arriving=arriving,
        sent=sent,
        returning=returning,
        far=far,
    )


def _over_layers(amounts: IntArray) -> IntArray:
    """[i, j]: the most of amounts[i, l] over the layers l of an interval; 0 where it has none."""
    count = len(amounts)
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for i in range(count):
        table[i, i + 1 :] = np.maximum.accumulate(amounts[i, i:])
    return table


def _on_top(amounts: IntArray) -> IntArray:
    """Where there are layers."""
    return np.triu(np.maximum(amounts, 0), 1)


def _messages(
    graph: ModelGraph, costs: Sequence[LayerCost], size_of: Mapping[str, int]
) -> tuple[Rectangles, ...]:
    """arriving, sent, returning, far, and by [i, l] what was made from i on and passes by layer l."""
    count, keepers = len(graph.layers), storages(graph, costs).keepers()
    arriving, sent, returning, far, passing = (Rectangles(count) for _ in range(5))
    for value in graph.values:
        if not value.producer or not value.consumers:
            continue
        made, size = graph.index[value.producer], size_of[value.name]
        users = sorted(graph.index[name] for name in set(value.consumers))
        last = users[-1]
        arriving.add_once(users, size, after=made)
        passing.add((0, made + 1), (made + 1, last), size)
        keeper = keepers.get(value.name, count)
        if keeper >= made:
            sent.add((0, made + 1), (made + 1, min(keeper, last) + 1), size)
        else:
            sent.add((keeper + 1, made + 1), (made + 1, last + 1), size)
        if value.needs_grad:
            far.add_once(users, size, after=made + 1)
            returning.add((0, made + 1), (made + 1, last + 1), size)
            for before, user in zip([made, *users], users, strict=False):
                returning.add((before + 1, user + 1), (user + 1, last + 1), size)
    return arriving, sent, returning, far, passing
