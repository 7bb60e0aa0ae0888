"""Which values share memory, and the bytes that a stage keeps of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planner.model import ModelGraph
from planner.profile.profile import PERSISTENT, CostKey, LayerCost, Profile


def roots(profile: Profile, layers: Iterable[str], key: CostKey) -> dict[str, str | None]:
    """For each Value seen by these layers the one whose storage it is: itself, or what it is a view of.

    None is the storage of a parameter. A Value from outside these layers arrives as storage of its own.
    """
    root: dict[str, str | None] = {}
    for name in layers:
        layer, cost = profile.graph.layer[name], profile.cost(name, key)
        for value in layer.inputs:
            root.setdefault(value, value)
        views = dict(cost.aliases)
        for position, value in enumerate(layer.outputs):
            source = views.get(position)
            if source is None:
                root[value] = value
            else:
                root[value] = None if source == PERSISTENT else root[layer.inputs[source]]
    return root


def kept_values(profile: Profile, layers: Iterable[str], key: CostKey, held: Iterable[str] = ()) -> set[str]:
    """The Values whose storages stay for the backward of these layers, and of those `held` for other reasons."""
    layers = tuple(layers)
    root = roots(profile, layers, key)
    kept = {root[value] for value in held}
    for name in layers:
        layer, cost = profile.graph.layer[name], profile.cost(name, key)
        kept |= {root[layer.inputs[i]] for i in cost.kept_inputs}
        kept |= {root[layer.outputs[i]] for i in cost.kept_outputs}
    return {name for name in kept if name is not None}


def stage_memory(profile: Profile, layers: Iterable[str], key: CostKey) -> int:
    """What one stage keeps for one micro-batch in flight: `saved_bytes`, and what came from outside.

    The runtime holds that until the backward of the stage. What the stage makes for later ones is gone once it is
    sent, and not counted here.
    """
    layers = tuple(layers)
    made = {value for name in layers for value in profile.graph.layer[name].outputs}
    read = {value for name in layers for value in profile.graph.layer[name].inputs}
    own = sum(profile.cost(name, key).own_saved_bytes for name in layers)
    kept = kept_values(profile, layers, key, read - made)
    return own + sum(profile.value_bytes(name, key) for name in kept)


class Storages(NamedTuple):
    origin: dict[str, str | None]  # of each Value, whose storage it has; None is a parameter's
    first: dict[str, int]  # of each storage that a backward needs, the first layer that keeps it

    def keepers(self) -> dict[str, int]:
        """The same of each Value."""
        return {name: self.first[x] for name, x in self.origin.items() if x is not None and x in self.first}

    def own(self, value: str, layer: int) -> bool:
        """Whether it is a storage of its own that this layer keeps before any other."""
        return self.origin[value] == value and self.first.get(value) == layer


def storages(graph: ModelGraph, costs: Sequence[LayerCost]) -> Storages:
    origin: dict[str, str | None] = {value.name: value.name for value in graph.values}
    first: dict[str, int] = {}
    for index, (layer, cost) in enumerate(zip(graph.layers, costs, strict=True)):
        for out, source in cost.aliases:
            origin[layer.outputs[out]] = None if source == PERSISTENT else origin[layer.inputs[source]]
        kept = [layer.inputs[i] for i in cost.kept_inputs] + [layer.outputs[i] for i in cost.kept_outputs]
        for name in kept:
            if (root := origin[name]) is not None:
                first.setdefault(root, index)
    return Storages(origin, first)
