"""Holds what every layer costs on one device: the table between measuring (or the roofline) and the solver.

Times are of one micro-batch on one rank. Layers of equal signature share a row. Saved bytes are in two parts so
that nothing is counted twice. The first part is what a layer allocates and keeps for itself. The second part are
the Values it reads or makes and keeps, as positions in `Layer.inputs` and `Layer.outputs`. A stage counts each
Value once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from planner.arrays import NS_PER_S
from planner.cluster import Correction, Corrections, Device
from planner.errors import BadInput
from planner.kept import WHOLE, KeptEntries
from planner.model import ModelGraph
from planner.schedule import Kind
from planner.shown import Shown

MOST_S = 1e4  # of one layer, for one micro-batch; what takes longer is no profile


def corrected(profile: Profile, fitted: Corrections | None) -> Profile:
    """Returns the profile with its times scaled by what runs have shown.

    The time that every action takes besides its layers is `launch_ns`.

    Args: `fitted` are the corrections; None leaves the profile as it is.
    Raises: BadInput where a corrected layer takes hours.
    """
    if fitted is None:
        return profile
    costs = {key: _cost(cost, fitted) for key, cost in profile.costs.items()}
    rate = profile.optimizer.seconds_per_parameter
    optimizer = replace(
        profile.optimizer,
        seconds_per_parameter=_scaled(rate, fitted.update),
        gather_seconds_per_parameter=profile.optimizer.gather_s * _factor(fitted.weight_grad),
        scatter_seconds_per_parameter=profile.optimizer.scatter_s * _factor(fitted.update),
    )
    types = {device: corrected(own, fitted) for device, own in profile.types.items()}
    return replace(profile, costs=costs, optimizer=optimizer, types=types)


def _cost(cost: LayerCost, fitted: Corrections) -> LayerCost:
    return replace(
        cost,
        forward=_scaled(cost.forward, fitted.forward),
        backward=_scaled(cost.backward, fitted.backward),
        input_grad=_scaled(cost.input_grad, fitted.input_grad),
        weight_grad=_scaled(cost.weight_grad, fitted.weight_grad),
    )


def _factor(correction: Correction | None) -> float:
    return 1.0 if correction is None else correction.factor


def _scaled(seconds: Seconds, correction: Correction | None) -> Seconds:
    factor = _factor(correction)
    scaled = Seconds(median=seconds.median * factor, spread=seconds.spread * factor)
    if scaled.median > MOST_S:
        raise BadInput(
            f"corrected by {factor:g}, a layer takes {scaled.median:g} s", allowed=f"at most {MOST_S:g} s"
        )
    return scaled


def launch_ns(fitted: Corrections | None, kind: Kind) -> int:
    """Returns the nanoseconds that an action takes besides its layers.

    Args: `fitted` are the corrections; None, or no correction for this `kind` of action, gives 0.
    """
    row = None if fitted is None else fitted.of(kind)
    return 0 if row is None else round(row.start_s * NS_PER_S)


PERSISTENT = -1  # in `LayerCost.aliases`: the output is a view of a parameter or buffer


class CostKey(NamedTuple):
    """The name of a row: which layer, by its signature, at which setting. Keys of a setting alone have an empty
    signature.
    """

    signature: str
    micro: int
    split: tuple[int, ...]  # grid along (dim 2, dim 3, ...) of this layer's input; () is the whole sample
    precision: str  # fp32 | bf16
    execution: str  # eager | compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Median of the repeats, and how far a later measurement may lie from it; 0 where it was derived."""

    median: float
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """The seconds and bytes that one micro-batch of a layer takes in each pass."""

    forward: Seconds
    backward: Seconds  # whole: input and weight gradients in one pass
    input_grad: Seconds  # the I half
    weight_grad: Seconds  # the W half
    own_saved_bytes: int  # allocated by the layer and kept until its backward, Values excluded
    kept_inputs: tuple[int, ...]  # positions in Layer.inputs of the Values that the backward needs
    kept_outputs: tuple[int, ...]
    held_bytes: int  # still held between I and W, Values included
    workspace_bytes: int  # highest transient above what stays, in any of the passes
    forward_workspace_bytes: int | None = None  # of that, in a forward; None: as much
    output_bytes: tuple[int, ...] = ()  # of each output in this precision; empty: as the graph says
    # (output, input): the output is a view of the input, so both are one storage. PERSISTENT stands for a parameter.
    aliases: tuple[tuple[int, int], ...] = ()
    walks: bool = False  # a stage with this layer keeps all that it has saved between I and W
    walked_bytes: int = 0  # gradients that a stage which walks keeps of this layer besides
    owing_bytes: int = 0  # saved besides where weight gradients are owed: shards joined to halos


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """The seconds and bytes that an update takes, an element or a tensor of the parameters."""

    name: str
    state_bytes_per_parameter: float  # per element: AdamW in fp32 keeps 8
    seconds_per_parameter: Seconds  # per element updated
    state_bytes_per_tensor: float = 0.0  # per parameter, of whatever size: a counter of steps
    # While a stage is updated: bytes an element of its largest parameter, and of the others. Optimizers go through
    # parameters one by one or all at once.
    largest_bytes_per_parameter: float = 0.0
    other_bytes_per_parameter: float = 0.0
    by_element: bool | None = None  # it updates parts of a parameter as it does the whole; None: not tried
    joint: bool = False  # it looks at all parameters together, as one that clips inside step() does
    # Per kept entry of a pruned weight: its gradient out of a dense one, and its value into the dense weight. 0: not
    # measured, and then as long as its update.
    gather_seconds_per_parameter: float = 0.0
    scatter_seconds_per_parameter: float = 0.0

    @property
    def gather_s(self) -> float:
        """Returns the seconds that a kept entry's gradient takes on its way out of a dense one."""
        return self.gather_seconds_per_parameter or self.seconds_per_parameter.median

    @property
    def scatter_s(self) -> float:
        """Returns the seconds that a kept entry takes on its way into the dense weight."""
        return self.scatter_seconds_per_parameter or self.seconds_per_parameter.median


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCost:
    """The seconds and bytes that one process takes for a sample of the dataset, read whole."""

    cold_s: float  # read for the first time
    warm_s: float  # read again
    collate_s: float  # joined to a batch; a sample that was not read before then takes cold_s + collate_s
    sample_bytes: int
    finish_s: float = (
        0.0  # of warm_s, in finish(raw): what is left to do where raw samples are kept in memory
    )
    batch_s: float = 0.0  # of each batch, whatever its samples


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(Shown):
    """The costs of every layer of a model on one device, with the model itself."""

    workload: str
    arguments: Mapping[str, object]  # what --set gave
    graph: ModelGraph
    device: str  # a name of the device catalogue, or the name the device gave itself
    source: Literal["measured", "roofline"]
    costs: Mapping[CostKey, LayerCost]
    optimizer: OptimizerCost
    versions: Mapping[str, str]  # torch, shardwright, python
    failures: Mapping[CostKey, str] = field(default_factory=dict)  # rows that could not be had, and why
    others: float = 0.0  # share of the machine that other processes took while it was measured
    samples: SampleCost | None = None  # None where batches are synthetic, or reading was not timed
    kept: KeptEntries = WHOLE  # of pruned weights, that plans are for; in no file
    types: Mapping[str, Profile] = field(default_factory=dict)  # by device: see `together`; in no file
    halved: frozenset[str] = frozenset()  # weights that plans hold in bf16; in no file

    @property
    def by_type(self) -> dict[str, Profile]:
        """Returns the profile of each type of device, as this one is asked; empty where there is but one."""
        return {
            device: replace(own, kept=self.kept, halved=self.halved, graph=self.graph)
            for device, own in self.types.items()
        }

    @property
    def by_element(self) -> bool:
        """Returns whether ranks may each update a part of a parameter; none is shared so where weights are pruned
        or in bf16."""
        return bool(self.optimizer.by_element) and not self.kept.counts and not self.halved

    def cost(self, layer: str, key: CostKey) -> LayerCost:
        """Returns the row of a layer at a setting.

        Args: `layer` is a name; the signature in `key` does not count.
        Raises: KeyError where the layer was not profiled at this setting.
        """
        return self.costs[key._replace(signature=self.graph.layer[layer].signature)]

    def value_bytes(self, value: str, key: CostKey) -> int:
        """Returns the bytes of a Value in the precision of a setting.

        The graph knows its Values in the precision of the capture only.

        Args: `value` is a name; the signature in `key` does not count.
        """
        row = self.graph.value[value]
        if row.producer:
            sizes = self.cost(row.producer, key).output_bytes
            if sizes:
                return sizes[self.graph.layer[row.producer].outputs.index(value)]
        return row.bytes(key.micro)

    @cached_property
    def settings(self) -> tuple[CostKey, ...]:
        """Returns every setting of whole samples at which no layer failed, with an empty signature."""
        failed = {key._replace(signature="") for key in self.failures}
        found = {key._replace(signature="") for key in self.costs if not key.split}
        return tuple(sorted(found - failed))

    @cached_property
    def shards(self) -> tuple[CostKey, ...]:
        """Returns every setting of which there are shards, with an empty signature. Some layers may have no row at
        it.
        """
        return tuple(sorted({key._replace(signature="") for key in self.costs if key.split}))

    def to_rows(self) -> list[dict[str, object]]:
        """Returns one row for each layer at each setting, with times in nanoseconds."""
        layers = self.graph.layers
        settings = sorted({key._replace(signature="") for key in self.costs})
        pairs = [
            (layer, key)
            for key in settings
            for layer in layers
            if key._replace(signature=layer.signature) in self.costs
        ]
        return [
            {
                "layer": layer.name,
                "micro": key.micro,
                "split": "x".join(map(str, key.split)) or "whole",
                "precision": key.precision,
                "execution": key.execution,
                "forward_ns": round(NS_PER_S * cost.forward.median),
                "backward_ns": round(NS_PER_S * cost.backward.median),
                "input_grad_ns": round(NS_PER_S * cost.input_grad.median),
                "weight_grad_ns": round(NS_PER_S * cost.weight_grad.median),
                "own_saved_bytes": cost.own_saved_bytes,
                "workspace_bytes": cost.workspace_bytes,
            }
            for layer, key in pairs
            for cost in [self.cost(layer.name, key)]
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns the profile as plain data; rows that could not be had are left out."""
        rows = [key._asdict() | asdict(cost) for key, cost in self.costs.items()]
        facts = ("workload", "arguments", "device", "source", "versions")
        return {
            **{name: getattr(self, name) for name in facts},
            "optimizer": asdict(self.optimizer),
            "graph": self.graph.to_dict(),
            "costs": rows,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationWork:
    """The work of one operation: arithmetic and memory traffic."""

    flops: int
    traffic_bytes: int
    precision: str  # of its arithmetic


def seconds(work: Iterable[OperationWork], device: Device) -> Seconds:
    """Returns what operations take one after the other.

    Args: `work` has one row an operation; `device` has the peak rates.
    """
    return Seconds(median=sum(_operation_s(x, device) for x in work))


def _operation_s(work: OperationWork, device: Device) -> float:
    arithmetic_s = work.flops / device.flop_per_s(work.precision)
    return max(arithmetic_s, work.traffic_bytes / device.memory_bytes_per_s, device.launch_s)
