"""Checks a profile against its model before anybody plans with it.

Finds which Values share memory, and adds up the bytes that a stage keeps of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict
from typing import NamedTuple

from planner.arrays import NS_PER_S
from planner.errors import BadInput
from planner.model import Layer, ModelGraph
from planner.profile.profile import (
    MOST_S,
    PERSISTENT,
    CostKey,
    LayerCost,
    OptimizerCost,
    Profile,
    SampleCost,
    Seconds,
)

MOST_BYTES = 2.0**44  # of one layer, for one micro-batch
MOST_ENTRY_S = 1e-3  # of an update, for one entry of a parameter


class Fault(NamedTuple):
    """A number or row that cannot be planned with; `key` says where it stands in a profile file."""

    key: tuple[str | int, ...]
    what: str
    allowed: str


def check(profile: Profile) -> Profile:
    """Returns the profile itself, if every number in it can be planned with.

    Args: `profile` may come from a file or from measuring.
    Raises: BadInput names the first number or row that cannot be planned with.
    """
    for fault in faults(profile):
        raise BadInput(fault.what, where="profile", allowed=fault.allowed)
    return profile


def faults(profile: Profile) -> Iterator[Fault]:
    """Yields everything in a profile that cannot be planned with.

    Args: `profile` has a graph that is consistent.
    """
    layers = {layer.signature: layer for layer in reversed(profile.graph.layers)}
    yield from _optimizer_faults(profile.optimizer)
    if not profile.workload:
        yield Fault(("workload",), "names no workload", "file.py, package.module, or the name of a model")
    if not 0 <= profile.others <= 1:
        yield Fault(("others",), f"others is {profile.others}", "a share from 0 to 1")
    yield from _sample_faults(profile.samples)
    for row, (key, cost) in enumerate(profile.costs.items()):
        if key.signature not in layers:
            yield Fault(
                ("costs", row, "signature"), f"no layer has signature {key.signature}", "one of the layers'"
            )
            continue
        if key.micro < 1 or any(part < 1 for part in key.split):
            yield Fault(("costs", row, "micro"), f"micro-batch {key.micro}, split {key.split}", "1 or more")
        layer = layers[key.signature]
        place = _describe(layer, key)
        trains = any(profile.graph.parameter[name].trainable for name in layer.parameters)
        for name, what, allowed in (*_cost_faults(layer, cost), *_instant(cost, trains)):
            yield Fault(("costs", row, name), f"{place}: {what}", allowed)
    yield from _missing_rows(profile, layers)


def _number_fault(name: str, value: float, most: float = MOST_BYTES) -> Iterator[tuple[str, str, str]]:
    if not 0 <= value <= most:
        yield name.partition(".")[0], f"{name} is {value}", f"a number, 0 to {most:g}"


def _seconds_fault(name: str, value: Seconds, most: float = MOST_S) -> Iterator[tuple[str, str, str]]:
    yield from _number_fault(f"{name}.median", value.median, most)
    yield from _number_fault(f"{name}.spread", value.spread, most)


def _instant(cost: LayerCost, trains: bool) -> Iterator[tuple[str, str, str]]:
    """Yields the passes that take no time: plans are in nanoseconds, and each pass of a stage takes one at least."""
    passes = {"forward": cost.forward.median}
    if trains:
        passes |= {"backward": cost.backward.median}
        passes |= {"input_grad": cost.input_grad.median + cost.weight_grad.median}
    for name, seconds in passes.items():
        if 0 <= seconds < 0.5 / NS_PER_S:
            yield name, f"{name} takes no time", "a nanosecond or more"


def _sample_faults(found: SampleCost | None) -> Iterator[Fault]:
    for name, value in asdict(found).items() if found else ():
        most = MOST_BYTES if name == "sample_bytes" else MOST_S
        if not 0 <= value <= most:
            yield Fault(("samples", name), f"{name} is {value}", f"0 to {most:g}")


def _optimizer_faults(optimizer: OptimizerCost) -> Iterator[Fault]:
    found = [
        *_seconds_fault("seconds_per_parameter", optimizer.seconds_per_parameter, MOST_ENTRY_S),
        *_number_fault("gather_seconds_per_parameter", optimizer.gather_seconds_per_parameter, MOST_ENTRY_S),
        *_number_fault(
            "scatter_seconds_per_parameter", optimizer.scatter_seconds_per_parameter, MOST_ENTRY_S
        ),
        *_number_fault("state_bytes_per_parameter", optimizer.state_bytes_per_parameter),
        *_number_fault("state_bytes_per_tensor", optimizer.state_bytes_per_tensor),
        *_number_fault("largest_bytes_per_parameter", optimizer.largest_bytes_per_parameter),
        *_number_fault("other_bytes_per_parameter", optimizer.other_bytes_per_parameter),
    ]
    yield from (Fault(("optimizer", name), what, allowed) for name, what, allowed in found)


def _cost_faults(layer: Layer, cost: LayerCost) -> Iterator[tuple[str, str, str]]:
    for name in ("forward", "backward", "input_grad", "weight_grad"):
        yield from _seconds_fault(name, getattr(cost, name))
    for name in ("own_saved_bytes", "held_bytes", "workspace_bytes", "walked_bytes", "owing_bytes"):
        yield from _number_fault(name, getattr(cost, name))
    forward = cost.forward_workspace_bytes
    if forward is not None and not 0 <= forward <= cost.workspace_bytes:
        yield (
            "forward_workspace_bytes",
            f"forward_workspace_bytes is {forward}",
            f"0 to {cost.workspace_bytes}, the workspace of all passes",
        )
    for size in cost.output_bytes:
        yield from _number_fault("output_bytes", size)
    if len(cost.output_bytes) not in (0, len(layer.outputs)):
        yield (
            "output_bytes",
            f"output_bytes has {len(cost.output_bytes)} entries",
            f"{len(layer.outputs)} or none",
        )
    views = [view for view, _ in cost.aliases]
    sources = [source for _, source in cost.aliases if source != PERSISTENT]
    yield from _position_faults("kept_inputs", cost.kept_inputs, layer.inputs)
    yield from _position_faults("kept_outputs", cost.kept_outputs, layer.outputs)
    yield from _position_faults("aliases", views, layer.outputs)
    yield from _position_faults("aliases", sources, layer.inputs)


def _position_faults(name: str, positions: Iterable[int], values: Sized) -> Iterator[tuple[str, str, str]]:
    for position in positions:
        if not 0 <= position < len(values):
            yield name, f"{name} has position {position}", f"0 up to, not including, {len(values)}"


def _missing_rows(profile: Profile, layers: Mapping[str, Layer]) -> Iterator[Fault]:
    """Whole samples must be priced in every layer at every setting; shards only where a layer can be cut."""
    if not profile.costs:
        yield Fault(("costs",), "there are no costs", "one row a signature and setting")
    rows = {**profile.failures, **profile.costs}
    for setting in sorted({key._replace(signature="") for key in rows}):
        for signature, layer in layers.items():
            key = setting._replace(signature=signature)
            if not setting.split and key not in rows:
                place = _describe(layer, key)
                yield Fault(("costs",), f"{place}: there is no row", "one row a signature and setting")


def _describe(layer: Layer, key: CostKey) -> str:
    split = f", split {'x'.join(map(str, key.split))}" if key.split else ""
    return f"costs of layer '{layer.name}', micro {key.micro}{split}, {key.precision}, {key.execution}"


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
