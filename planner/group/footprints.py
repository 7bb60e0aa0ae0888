"""What each layer keeps and needs of memory on one rank of a group, operation by operation.

A layer is walked forward and backward once as the rank computes it. Every tensor is there from its making to its last
use, and what the backward pass reads stays until then. A conversion is an operation of its own: what it sends and
receives is there beside what it makes. The same walk of the whole layer tells how much of the measured bytes it
explains. A rank has the measured ones in that proportion (`own_profile.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from planner.group.storages import LayerStep, LayerSteps, Storage, StorageWalk
from planner.layout import (
    LocalGraph,
    everywhere,
)


class LayerBytes(NamedTuple):
    """The bytes of one layer, with the meaning that a profile gives them."""

    kept: int = 0  # made by the layer and kept until its backward, Values excluded
    held: int = 0  # between the halves of a backward, Values included
    working: int = 0  # highest beside what stays, in any pass


def whole(found: LocalGraph) -> LocalGraph:
    """Returns the same model as one process computes it."""
    layouts = {name: tuple(everywhere(x.shape) for x in own) for name, own in found.layouts.items()}
    placed = tuple(
        replace(
            each,
            inputs={name: everywhere(x.shape) for name, x in each.inputs.items()},
            outputs=tuple(everywhere(x.shape) for x in each.outputs),
            kernels={},
        )
        for each in found.placed
    )
    return replace(found, placed=placed, layouts=layouts, made={})


def footprints(found: LocalGraph, element_bytes: int, weight_bytes: int) -> Mapping[str, LayerBytes]:
    """Returns the bytes of each layer on the rank of a group with most to do.

    Args: `element_bytes` are of what layers make, `weight_bytes` of a parameter.
    """
    walk = StorageWalk(found, element_bytes, weight_bytes)
    return {name: _bytes_of(walk, layer) for name, layer in walk.layers().items()}


def _bytes_of(walk: StorageWalk, layer: LayerSteps) -> LayerBytes:
    """Returns the bytes of one layer."""
    values = layer.entering | layer.leaving
    kept = {x for step in layer.steps for x in step.keeps}
    own = sum(walk.bytes[x] for x in kept - values)
    held: dict[object, int] = {}
    for step in layer.steps:
        held |= step.held
    entering = sum(walk.bytes[x] for x in layer.entering)
    staying = own + sum(walk.bytes[x] for x in kept & values)
    forward = entering + _forward(walk, layer, kept) - staying
    return LayerBytes(own, sum(held.values()), max(0, forward, _backward(walk, layer, kept - values)))


def _forward(walk: StorageWalk, layer: LayerSteps, kept: set[Storage]) -> int:
    """Returns the most bytes that a layer has made and not given up, at any time of its forward pass."""
    last = {x: i for i, step in enumerate(layer.steps) for x in step.reads}
    live = peak = 0
    there = set[Storage]()
    for i, step in enumerate(layer.steps):
        new = {*([step.makes] if step.makes else []), *step.keeps} - layer.entering - there
        there |= new
        live += sum(walk.bytes[x] for x in new)
        peak = max(peak, live + step.forward)
        gone = {x for x in there if last.get(x, -1) <= i} - kept - layer.leaving
        there -= gone
        live -= sum(walk.bytes[x] for x in gone)
    return peak


def _backward(walk: StorageWalk, layer: LayerSteps, kept: set[Storage]) -> int:
    """Returns the most bytes that a layer has made and not given up, at any time of its backward pass."""
    there = {x: walk.bytes[x] for x in layer.leaving if x[0] in walk.found.trained}
    live = peak = sum(there.values())
    keepers: dict[Storage, int] = defaultdict(int)
    for step in layer.steps:
        for x in step.keeps & kept:
            keepers[x] += 1
    for step in reversed(layer.steps):
        if step.result not in there:
            continue
        came = there[step.result]
        live += step.weights
        live, highest = _graded(walk, step, there, live)
        peak = max(peak, highest, live + step.backward)
        if step.makes is not None and step.result in there and not (step.passing and step.grads):
            live -= there.pop(step.result, came)
        for x in step.keeps & kept:
            keepers[x] -= 1
            live -= walk.bytes[x] if not keepers[x] else 0
    return peak


def _graded(walk: StorageWalk, step: LayerStep, there: dict[Storage, int], live: int) -> tuple[int, int]:
    """Returns the bytes there once an operation has made its gradients, and the most meanwhile."""
    highest = live
    came = there[step.result]
    for x in dict.fromkeys(step.grads):
        if x == step.result:
            continue
        size = 0 if step.passing and walk.bytes[x] == came else walk.bytes[x]
        live += size
        highest = max(highest, live)
        if x in there:
            live -= size
        else:
            there[x] = size
    return live, highest


def in_proportion(measured: int, own: int, of_whole: int) -> int:
    """Returns measured bytes of a whole layer as a rank has them.

    What the walk does not explain of them shrinks as what it explains.
    Args: `own` is what the walk says of the rank, and `of_whole` of the whole layer.
    """
    if measured <= of_whole:
        return ceil(measured * own / of_whole) if of_whole else own
    return own + ceil((measured - of_whole) * (min(1.0, own / of_whole) if of_whole else 1.0))
