"""Finds which Values share memory, and adds up the bytes that a stage keeps of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from planner.model import ModelGraph
from planner.profile.profile import PERSISTENT, CostKey, LayerCost, Profile


def roots(profile: Profile, layers: Iterable[str], key: CostKey) -> dict[str, str | None]:
    """Returns for each Value seen by some layers the Value that owns its storage: itself, or the one that it is a
    view of.

    A Value from outside these layers arrives as storage of its own.

    Args: `layers` are names in the order of the model.
    Returns: names by name; None stands for the storage of a parameter.
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
    """Returns the names of the Values whose storages stay for the backward of some layers.

    Args: `layers` are names in the order of the model; `held` are Values that stay for other reasons.
    """
    layers = tuple(layers)
    root = roots(profile, layers, key)
    kept = {root[value] for value in held}
    for name in layers:
        layer, cost = profile.graph.layer[name], profile.cost(name, key)
        kept |= {root[layer.inputs[i]] for i in cost.kept_inputs}
        kept |= {root[layer.outputs[i]] for i in cost.kept_outputs}
    return {name for name in kept if name is not None}


def stage_memory(profile: Profile, layers: Iterable[str], key: CostKey) -> int:
    """Returns the bytes that one stage keeps for one micro-batch in flight, each storage once.

    These are what autograd keeps for the backward, and what came from outside, which the runtime holds until the
    backward of the stage. What the stage makes for later stages is gone once it is sent, and not counted here.

    Args: `layers` are names in the order of the model.
    """
    layers = tuple(layers)
    made = {value for name in layers for value in profile.graph.layer[name].outputs}
    read = {value for name in layers for value in profile.graph.layer[name].inputs}
    own = sum(profile.cost(name, key).own_saved_bytes for name in layers)
    kept = kept_values(profile, layers, key, read - made)
    return own + sum(profile.value_bytes(name, key) for name in kept)


class Storages(NamedTuple):
    """The owners of all storages of a model, and the layers that keep them."""

    origin: dict[str, str | None]  # of each Value, whose storage it has; None is a parameter's
    first: dict[str, int]  # of each storage that a backward needs, the first layer that keeps it

    def keepers(self) -> dict[str, int]:
        """Returns for each Value the first layer whose backward needs its storage; Values that nobody keeps are
        missing.
        """
        return {name: self.first[x] for name, x in self.origin.items() if x is not None and x in self.first}

    def own(self, value: str, layer: int) -> bool:
        """Returns whether a Value owns its storage and a layer is the first to keep it.

        Args: `value` is a name, `layer` a position.
        """
        return self.origin[value] == value and self.first.get(value) == layer


def storages(graph: ModelGraph, costs: Sequence[LayerCost]) -> Storages:
    """Returns who owns and who keeps the storages of a model.

    Args: `costs` has one row a layer, in the order of the model.
    """
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
