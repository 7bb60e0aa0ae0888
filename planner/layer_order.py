"""Orders of a model's layers other than that of its capture: what makes one, and the model in it.

A plan's stages, one after the other, name all layers; that is the order its cuts are made in. Nothing else says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.errors import BadPlan
from planner.model import ModelGraph
from planner.plan import Plan


def misplaced(graph: ModelGraph, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Of names that are all the layers: each that stands before one that it hangs on, and that one. The loss hangs on
    every layer, and writers of one state on each other in the order of the capture."""
    at = {name: place for place, name in enumerate(names)}
    for before, after in dependences(graph):
        if at[before] > at[after]:
            yield after, before


def dependences(graph: ModelGraph) -> Iterator[tuple[str, str]]:
    """(before, after), each a layer."""
    for value in graph.values:
        if value.producer:
            yield from ((value.producer, consumer) for consumer in value.consumers)
    for buffer in graph.buffers:
        if buffer.mutated:
            yield from zip(buffer.users, buffer.users[1:], strict=False)
    last = graph.layers[-1].name
    yield from ((layer.name, last) for layer in graph.layers[:-1])


def alone(graph: ModelGraph) -> bool:
    """Whether every layer hangs on the one before it."""
    needed = set(dependences(graph))
    return all((a.name, b.name) in needed for a, b in pairwise(graph.layers))


def ordered(graph: ModelGraph, names: Sequence[str]) -> ModelGraph:
    """The same object where the order is the same."""
    present = tuple(layer.name for layer in graph.layers)
    if tuple(names) == present:
        return graph
    assert sorted(names) == sorted(present), "an order names every layer once"
    captured, at = graph.captured_order or present, {name: place for place, name in enumerate(names)}
    place: Callable[[str], int] = at.__getitem__
    return replace(
        graph,
        layers=tuple(graph.layer[name] for name in names),
        values=tuple(replace(x, consumers=tuple(sorted(x.consumers, key=place))) for x in graph.values),
        parameters=tuple(replace(x, users=tuple(sorted(x.users, key=place))) for x in graph.parameters),
        buffers=tuple(replace(x, users=tuple(sorted(x.users, key=place))) for x in graph.buffers),
        captured_order=() if tuple(names) == captured else captured,
    )


def layers_of(plan: Plan) -> tuple[str, ...]:
    return tuple(name for stage in plan.stages for name in stage.layers)


def as_planned(graph: ModelGraph, plan: Plan) -> ModelGraph:
    """The model in the order of a plan; the model itself where the plan's layers are others."""
    names = layers_of(plan)
    if sorted(names) != sorted(layer.name for layer in graph.layers):
        return graph
    if wrong := next(misplaced(graph, names), None):
        raise BadPlan(f"layer '{wrong[0]}' stands before '{wrong[1]}', which it hangs on")
    return graph.ordered(names)
