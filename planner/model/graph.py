"""The model as data: layers, the values that pass between them, and the parameters they hold.

A ModelGraph is what `capture` makes of a module and what a profile file stores; from here on nobody needs torch.
Layers stand in the order of the export, which is a topological order, or in another one that a plan has chosen. The
loss is the last layer.

>>> hidden = Value(name="fc1:0", role="hidden", producer="fc1", consumers=("fc2",), shape=(64,),
...     dtype="float32", fixed_bytes=0, sample_bytes=256, needs_grad=True)
>>> hidden.bytes(micro=8)
2048
>>> stage_of_layers(4, boundaries=[1, 3])
[0, 1, 1, 2]

Terms:
- a *layer* is the unit that stages are cut from;
- a *Value* is a tensor that passes between layers, and a *crossing* one that leaves its stage;
- *micro* is the samples of a micro-batch. Sizes are affine in it: `fixed + micro * per_sample`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

from planner.shown import Shown

BufferUpdate = Literal["", "own", "samples"]


def ordered(graph: ModelGraph, names: Sequence[str]) -> ModelGraph:
    """Puts the layers of a model in another order.

    Args: `names` are all the layers, in an order that `misplaced` finds nothing wrong with.
    Returns: a new graph, or the same object where the order is the same.
    """
    present = tuple(layer.name for layer in graph.layers)
    if tuple(names) == present:
        return graph
    assert sorted(names) == sorted(present), "an order names every layer once"
    captured = graph.captured_order or present
    place = {name: at for at, name in enumerate(names)}.__getitem__
    return replace(
        graph,
        layers=tuple(graph.layer[name] for name in names),
        values=tuple(replace(x, consumers=tuple(sorted(x.consumers, key=place))) for x in graph.values),
        parameters=tuple(replace(x, users=tuple(sorted(x.users, key=place))) for x in graph.parameters),
        buffers=tuple(replace(x, users=tuple(sorted(x.users, key=place))) for x in graph.buffers),
        captured_order=() if tuple(names) == captured else captured,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that crosses layers, or one that the batch hands in (`producer` is then empty)."""

    name: str
    role: Literal["input", "target", "hidden"]
    producer: str  # layer name; "" for inputs and targets
    consumers: tuple[str, ...]  # layer names in execution order
    shape: tuple[int, ...]  # for a micro-batch of one sample
    dtype: str  # "float32", "int64", ...
    fixed_bytes: int  # bytes(micro) = fixed_bytes + micro * sample_bytes
    sample_bytes: int
    needs_grad: bool  # a gradient flows back through it

    def bytes(self, micro: int) -> int:
        """Returns the bytes in a micro-batch.

        Args: `micro` is its number of samples.
        """
        return self.fixed_bytes + micro * self.sample_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of weights under the user's own name; several users mean that it is tied."""

    name: str
    users: tuple[str, ...]  # layer names in execution order
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    trainable: bool
    aliases: tuple[str, ...] = ()  # further names of the same tensor in the module
    written: bool = False  # the forward pass writes it, as an embedding with max_norm does


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """State without a gradient, such as BatchNorm's running mean."""

    name: str
    users: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    mutated: bool  # the forward pass writes it
    remembered: bool = False  # and reads it: what is recomputed needs it as it was
    # "": its holders add up their parts of it; "own": updates depend on parameters alone, each holder makes them all;
    # "samples": holders cannot keep it equal
    update: BufferUpdate = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A group of operations that belongs to one module path: the unit that stages are cut from."""

    name: str  # module path; "#k" is appended when a path is visited again; the last one is "loss"
    signature: str  # equal for layers with the same operations and shapes: measured once
    inputs: tuple[str, ...]  # names of the Values it reads
    outputs: tuple[str, ...]  # names of the Values it makes
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    operations: tuple[str, ...]  # "aten.linear", ... in order, for reports and the table of spatial rules
    fixed_flops: int  # forward only; flops(micro) = fixed_flops + micro * sample_flops
    sample_flops: int

    def flops(self, micro: int) -> int:
        """Returns the operations of a forward pass.

        Args: `micro` is the number of samples.
        """
        return self.fixed_flops + micro * self.sample_flops


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelGraph(Shown):
    """A whole model as tables of layers, values, parameters and buffers."""

    layers: tuple[Layer, ...]
    values: tuple[Value, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    loss_kind: Literal["mean", "sum_count"]
    symbolic_batch: bool  # one capture serves every micro-batch
    captured_micro: int  # the micro-batch that was captured when the batch is not symbolic
    least_micro: int = 1  # the range of micro-batches that a symbolic batch serves
    most_micro: int = 0  # 0: all larger ones
    operations: tuple[
        str, ...
    ] = ()  # as `planner.spatial` writes them; none where sizes are not known before
    captured_order: tuple[str, ...] = ()  # names of the layers as captured, where that is another
    synchronised: tuple[str, ...] = ()  # layers with a batch norm over all replicas

    @cached_property
    def layer(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def index(self) -> dict[str, int]:
        return {layer.name: i for i, layer in enumerate(self.layers)}

    @cached_property
    def value(self) -> dict[str, Value]:
        return {value.name: value for value in self.values}

    @cached_property
    def parameter(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def buffer(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def trained(self) -> tuple[Parameter, ...]:
        """Returns the parameters that a step changes: a layer uses them, and they are trainable.

        What no layer uses gets no gradient, and no optimizer touches it.
        """
        return tuple(parameter for parameter in self.parameters if parameter.trainable and parameter.users)

    @cached_property
    def fingerprint(self) -> str:
        """Returns a hash of layers, shapes and parameters, which is the same in every order of the layers.

        The operations that a torch version happens to emit do not count.
        """
        if self.captured_order:
            return self.ordered(self.captured_order).fingerprint
        facts = {
            "layers": [[x.name, x.inputs, x.outputs, x.parameters, x.buffers] for x in self.layers],
            "values": [
                [x.name, x.role, x.shape, x.dtype, x.fixed_bytes, x.sample_bytes] for x in self.values
            ],
            "parameters": [[x.name, x.users, x.shape, x.dtype, x.trainable] for x in self.parameters],
            "buffers": [[x.name, x.users, x.shape, x.dtype] for x in self.buffers],
        }
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def serves(self, micro: int) -> bool:
        """Returns whether the captured model holds for micro-batches of so many samples."""
        if not self.symbolic_batch:
            return micro == self.captured_micro
        return self.least_micro <= micro and (not self.most_micro or micro <= self.most_micro)

    def ordered(self, names: Sequence[str]) -> ModelGraph:
        """Returns the model with its layers in another order.

        Args: `names` are all the layers, in an order that `misplaced` finds nothing wrong with.
        """
        return ordered(self, names)

    def to_rows(self) -> list[dict[str, object]]:
        """Returns one dictionary a layer, with its sizes for one sample."""
        return [
            {
                "layer": layer.name,
                "parameters": sum(prod(self.parameter[name].shape) for name in layer.parameters),
                "flops": layer.flops(1),
                "reads": list(layer.inputs),
                "makes": list(layer.outputs),
                "made_bytes": sum(self.value[name].bytes(1) for name in layer.outputs),
                "operations": list(layer.operations),
            }
            for layer in self.layers
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns the graph as plain data; `graph_from_dict` reads it back."""
        names = ("layers", "values", "parameters", "buffers")
        tables: dict[str, object] = {name: [_row(row) for row in getattr(self, name)] for name in names}
        for name in ("operations", "synchronised"):
            if getattr(self, name):
                tables[name] = list(getattr(self, name))
        limits = {"least_micro": (self.least_micro, 1), "most_micro": (self.most_micro, 0)}
        tables |= {name: value for name, (value, usual) in limits.items() if value != usual}
        return tables | {
            "loss_kind": self.loss_kind,
            "symbolic_batch": self.symbolic_batch,
            "captured_micro": self.captured_micro,
            "fingerprint": self.fingerprint,
        }


def _row(row: Value | Parameter | Buffer | Layer) -> dict[str, object]:
    """Returns a row as plain data; how the forward writes a state is said only where it is unusual."""
    return {key: x for key, x in asdict(row).items() if x or key not in ("remembered", "update", "written")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A Value that leaves the stage that makes it, with every later stage that reads it."""

    value: str
    source: int  # stage
    targets: tuple[int, ...]  # stages in increasing order, all greater than `source`


def stage_of_layers(layer_count: int, boundaries: Sequence[int]) -> list[int]:
    """Returns the stage of each layer.

    Args: `boundaries` are the indices of the layers at which stages 1, 2, ... begin.
    """
    edges = [0, *boundaries, layer_count]
    return [stage for stage in range(len(edges) - 1) for _ in range(edges[stage], edges[stage + 1])]


def crossings(graph: ModelGraph, stage_of: Sequence[int]) -> list[Crossing]:
    """Lists the Values that must travel between stages, straight from the producer to each stage that reads them.

    Args: `stage_of` has the stage of each layer.
    Returns: one Crossing a Value that leaves its stage.
    """
    found = []
    for value in graph.values:
        if not value.producer:
            continue
        source = stage_of[graph.index[value.producer]]
        targets = sorted({stage_of[graph.index[name]] for name in value.consumers} - {source})
        if targets:
            found.append(Crossing(value=value.name, source=source, targets=tuple(targets)))
    return found
