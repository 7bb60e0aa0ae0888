"""What every layer costs on one device: the table between measuring (or the roofline) and the solver.

Times are of one micro-batch on one rank. Layers of equal signature share a row. Saved bytes are in two parts so
that nothing is counted twice: what a layer allocates and keeps for itself, and which of the Values that it reads
or makes it keeps (positions in `Layer.inputs` and `Layer.outputs`); a stage counts each Value once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from planner.errors import BadInput
from planner.model import Layer, ModelGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NANOSECOND = 1e-9  # what plans count time in
PERSISTENT = -1  # in `LayerCost.aliases`: the output is a view of a parameter or buffer


class CostKey(NamedTuple):
    signature: str
    micro: int
    split: tuple[
        int, ...
    ]  # spatial shards along (dim 2, dim 3, ...) of this layer's input; () is the whole sample
    precision: str  # fp32 | bf16
    execution: str  # eager | compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Median of the repeats, and half the distance between their quartiles; 0 where it was derived."""

    median: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    forward: Seconds
    backward: Seconds  # whole: input and weight gradients in one pass
    input_grad: Seconds  # the I half
    weight_grad: Seconds  # the W half
    own_saved_bytes: int  # allocated by the layer and kept until its backward, Values excluded
    kept_inputs: tuple[int, ...]  # positions in Layer.inputs of the Values that the backward needs
    kept_outputs: tuple[int, ...]
    held_bytes: int  # still held between I and W, Values included
    workspace_bytes: int  # highest transient above what stays, in any of the passes
    output_bytes: tuple[int, ...] = ()  # of each output in this precision; empty: as the graph says
    # (output, input): this output is a view of that input, so both are one storage; of a parameter if PERSISTENT
    aliases: tuple[tuple[int, int], ...] = ()
    walks: bool = False  # stages with it keep all that they have saved between I and W
    walked_bytes: int = 0  # gradients that such a stage keeps of it besides
    owing_bytes: int = 0  # saved besides where weight gradients are owed: shards with what neighbours send


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    name: str
    state_bytes_per_parameter: float  # per element: AdamW in fp32 keeps 8
    seconds_per_parameter: Seconds  # per element updated
    state_bytes_per_tensor: float = 0.0  # per parameter, of whatever size: a counter of steps
    # while a stage is updated, per element of its largest parameter, and of the others: optimizers go through them
    # one by one or all at once
    largest_bytes_per_parameter: float = 0.0
    other_bytes_per_parameter: float = 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile:
    workload: str
    arguments: Mapping[str, object]  # what --set gave
    graph: ModelGraph
    device: str  # a name of the device catalogue, or the name the device gave itself
    source: Literal["measured", "roofline"]
    costs: Mapping[CostKey, LayerCost]
    optimizer: OptimizerCost
    versions: Mapping[str, str]  # torch, shardwright, python
    failures: Mapping[CostKey, str] = field(default_factory=dict)  # rows that could not be had, and why

    def cost(self, layer: str, key: CostKey) -> LayerCost:
        return self.costs[key._replace(signature=self.graph.layer[layer].signature)]

    def value_bytes(self, value: str, key: CostKey) -> int:
        """Of a Value in the precision of a setting, where a graph's Values are those of the capture."""
        row = self.graph.value[value]
        if row.producer:
            sizes = self.cost(row.producer, key).output_bytes
            if sizes:
                return sizes[self.graph.layer[row.producer].outputs.index(value)]
        return row.bytes(key.micro)

    @cached_property
    def settings(self) -> tuple[CostKey, ...]:
        """Every setting of whole samples at which no layer failed, with an empty signature."""
        failed = {key._replace(signature="") for key in self.failures}
        found = {key._replace(signature="") for key in self.costs if not key.split}
        return tuple(sorted(found - failed))

    @cached_property
    def shards(self) -> tuple[CostKey, ...]:
        """Every setting of which there are shards, with an empty signature; not of every layer."""
        return tuple(sorted({key._replace(signature="") for key in self.costs if key.split}))

    def __repr__(self) -> str:
        from planner import summary

        return summary.of_profile(self)

    def _repr_html_(self) -> str:
        from planner.notebook import shows

        return shows.profile_html(self)

    def plot(self) -> Figure:
        from planner.notebook import figures, shows

        times = shows.layer_ns(self)
        return figures.of_graph(
            self.graph, (), [ns / 1e6 for ns in times.values()], "ms forward and backward"
        )

    def to_rows(self) -> list[dict[str, object]]:
        """A layer at a setting a row."""
        from planner.notebook import shows

        return shows.profile_rows(self)

    def to_dict(self) -> dict[str, object]:
        rows = [key._asdict() | asdict(cost) for key, cost in self.costs.items()]
        facts = ("workload", "arguments", "device", "source", "versions")
        return {
            **{name: getattr(self, name) for name in facts},
            "optimizer": asdict(self.optimizer),
            "graph": self.graph.to_dict(),
            "costs": rows,
        }


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


def saved_bytes(profile: Profile, layers: Iterable[str], key: CostKey) -> int:
    """What autograd keeps for the backward of these layers and one micro-batch, each storage once."""
    return _bytes(profile, tuple(layers), key, ())


def stage_memory(profile: Profile, layers: Iterable[str], key: CostKey) -> int:
    """What one stage keeps for one micro-batch in flight: `saved_bytes`, and what came from outside.

    The runtime holds that until the backward of the stage. What the stage makes for later ones is gone once it is
    sent, and not counted here.
    """
    layers = tuple(layers)
    made = {value for name in layers for value in profile.graph.layer[name].outputs}
    read = {value for name in layers for value in profile.graph.layer[name].inputs}
    return _bytes(profile, layers, key, read - made)


def _bytes(profile: Profile, layers: tuple[str, ...], key: CostKey, held: Iterable[str]) -> int:
    own = sum(profile.cost(name, key).own_saved_bytes for name in layers)
    kept = kept_values(profile, layers, key, held)
    return own + sum(profile.value_bytes(name, key) for name in kept)


class Fault(NamedTuple):
    """A number or row that cannot be planned with; `key` says where it stands in a profile file."""

    key: tuple[str | int, ...]
    what: str
    allowed: str


def check(profile: Profile) -> Profile:
    """The profile itself, if every number in it can be planned with; else BadInput names the first that cannot."""
    for fault in faults(profile):
        raise BadInput(fault.what, where="profile", allowed=fault.allowed)
    return profile


def faults(profile: Profile) -> Iterator[Fault]:
    layers = {layer.signature: layer for layer in reversed(profile.graph.layers)}
    yield from _optimizer_faults(profile.optimizer)
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


def _number_fault(name: str, value: float) -> Iterator[tuple[str, str, str]]:
    if not math.isfinite(value) or value < 0:
        yield name.partition(".")[0], f"{name} is {value}", "a finite number, 0 or more"


def _seconds_fault(name: str, value: Seconds) -> Iterator[tuple[str, str, str]]:
    yield from _number_fault(f"{name}.median", value.median)
    yield from _number_fault(f"{name}.spread", value.spread)


def _instant(cost: LayerCost, trains: bool) -> Iterator[tuple[str, str, str]]:
    """Plans are in nanoseconds, and no pass of a stage takes none."""
    passes = {"forward": cost.forward.median}
    if trains:
        passes |= {"backward": cost.backward.median}
        passes |= {"input_grad": cost.input_grad.median + cost.weight_grad.median}
    for name, seconds in passes.items():
        if 0 <= seconds < NANOSECOND / 2:
            yield name, f"{name} takes no time", "a nanosecond or more"


def _optimizer_faults(optimizer: OptimizerCost) -> Iterator[Fault]:
    found = [
        *_seconds_fault("seconds_per_parameter", optimizer.seconds_per_parameter),
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
