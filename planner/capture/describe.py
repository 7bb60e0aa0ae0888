"""Writes the ModelGraph of a captured model: layers, Values and parameters as plain data."""

from __future__ import annotations

import hashlib
import json
import operator
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, fx, nn

from planner.capture.fake_run import after, unknown
from planner.capture.functional import STATISTICS
from planner.capture.operations import operations_of
from planner.capture.slices import Slice, Slicing, affine
from planner.capture.state_use import updates_of, use_of_states
from planner.capture.traced_graph import OWNERS, SYNCHRONISED, Source, line_of, place_of
from planner.errors import BadInput
from planner.model import Buffer, Layer, ModelGraph, Parameter, Value
from planner.spatial import to_text


class NotAffine(Exception):
    """A tensor that crosses layers grows faster than the batch: only one batch size can be described."""


def describe(layout: Slicing, module: nn.Module, *, training: bool = True, more: int = 0) -> ModelGraph:
    """Returns the ModelGraph of a captured model.

    Args: `module` has the parameters and buffers, which the graph names and sizes; a graph for `training` needs a
        loss with a gradient; `more` numbers of metrics come after those of the loss.
    Raises: NotAffine where a tensor between layers grows faster than the batch.
    """
    return _Describer(layout, module, training, more).run()


class _Describer:
    def __init__(self, layout: Slicing, module: nn.Module, training: bool, more: int) -> None:
        self.layout, self.module, self.training, self.more = layout, module, training, more
        self.traced = layout.traced
        self.probe = layout.probes[0]
        self.names = layout.grouping.names
        self.slices = [layout.take(i, i) for i in range(len(self.names))]
        owned = {x: source.name for x, source in self.traced.sources.items() if source.kind in OWNERS}
        self.use = use_of_states(self.traced.graph, owned)
        self._refuse_two_modes()
        self.updates = updates_of(self.traced.graph, self.use)
        self.users: dict[fx.Node, list[str]] = defaultdict(list)  # of Values and of states
        for name, taken in zip(self.names, self.slices, strict=True):
            for node in (*taken.reads, *taken.states):
                self.users[node].append(name)

    def run(self) -> ModelGraph:
        batch = [x for x, source in self.traced.sources.items() if source.kind in ("input", "target")]
        return ModelGraph(
            layers=tuple(self._layer(i) for i in range(len(self.names))),
            values=tuple(self._value(node) for node in (*batch, *self.layout.crossing)),
            parameters=self._parameters(),
            buffers=self._buffers(),
            loss_kind=self._loss_kind(),
            symbolic_batch=self.traced.symbolic,
            captured_micro=self.traced.micro,
            operations=self._operations(),
            synchronised=self._synchronised(),
        )

    def _refuse_two_modes(self) -> None:
        """Refuses a norm that reads running statistics which the same pass writes.

        Its backward reads them again, and finds what a later micro-batch has written where one is under way.
        """
        for node in self.traced.graph.nodes:
            mean, _, switch = STATISTICS.get(str(node.target), (0, 0, 0))
            if switch and not node.args[switch] and self.use.views.get(node.args[mean]) in self.use.written:
                name = self.use.views[node.args[mean]].rpartition(".")[0]
                raise BadInput(
                    f"forward() applies '{name}' in evaluation mode and in training mode",
                    where=line_of(node) or f"module '{name}'",
                    allowed="one mode in a forward(), or two modules",
                )

    def _synchronised(self) -> tuple[str, ...]:
        found = [x for x in self.traced.graph.nodes if SYNCHRONISED in x.meta]
        return tuple(dict.fromkeys(self.names[self.layout.grouping.layer_of[x]] for x in found))

    def _operations(self) -> tuple[str, ...]:
        """Returns the operations as text, where all sizes are known before the model runs."""
        if any(map(unknown, self.probe.value.values())):
            return ()
        return tuple(map(to_text, operations_of(self.layout)))

    def _loss_kind(self) -> Literal["mean", "sum_count"]:
        outputs = self.traced.outputs[: len(self.traced.outputs) - self.more]
        shapes = [tuple(tensor.shape) for tensor in map(self._tensor, outputs)]
        if any(shapes) or len(shapes) not in (1, 2):
            raise BadInput(
                f"loss() gives tensors of shapes {shapes}",
                where="loss",
                allowed="one number, the mean over samples, or a pair (sum, count)",
            )
        trains = any(parameter.requires_grad for parameter in self.module.parameters())
        if self.training and trains and not self._tensor(self.traced.outputs[0]).requires_grad:
            raise BadInput(
                "the loss has no gradient",
                where="loss",
                allowed="one that depends on a parameter to train, not detached",
            )
        return "mean" if len(shapes) == 1 else "sum_count"

    def _tensor(self, node: fx.Node) -> Tensor:
        tensor = self.probe.tensor(node)
        assert tensor is not None
        return tensor

    def _layer(self, index: int) -> Layer:
        taken = self.slices[index]
        states = [(self.traced.sources[x], x) for x in taken.states]
        low, high = (sum(probe.flops.get(x, 0) for x in taken.nodes) for probe in self.layout.probes)
        flops = affine(low, high, self.layout.probes)
        made = [name for x, name in self.layout.crossing.items() if self.layout.grouping.layer_of[x] == index]
        return Layer(
            name=self.names[index],
            signature=_Signature(self.layout, taken, made).text(),
            inputs=tuple(self.layout.name(x) for x in taken.reads),
            outputs=tuple(made),
            parameters=tuple(source.name for source, _ in states if source.kind == "parameter"),
            buffers=tuple(source.name for source, _ in states if source.kind != "parameter"),
            operations=tuple(_operation(x) for x in taken.nodes if self._computes(x)),
            fixed_flops=max(flops.fixed, 0),
            sample_flops=flops.slope,
        )

    def _computes(self, node: fx.Node) -> bool:
        number = isinstance(self.probe.value[node], int | float)
        return node.op == "call_function" and not number and node.target not in (operator.getitem, after)

    def _value(self, node: fx.Node) -> Value:
        source = self.traced.sources.get(node)
        low, high = (probe.tensor(node) for probe in self.layout.probes)
        assert low is not None and high is not None
        sizes = affine(_bytes(low), _bytes(high), self.layout.probes)
        if sizes.fixed < 0:
            raise NotAffine
        dims = [self.layout.size(node, dim) for dim in range(low.ndim)]
        made = source is None
        return Value(
            name=self.layout.name(node),
            role="hidden" if made else _role(source),
            producer=self.names[self.layout.grouping.layer_of[node]] if made else "",
            consumers=tuple(self.users[node]),
            shape=tuple(dim.fixed + dim.slope for dim in dims) if self.traced.symbolic else tuple(low.shape),
            dtype=_dtype(low),
            fixed_bytes=sizes.fixed,
            sample_bytes=sizes.slope,
            needs_grad=low.requires_grad,
        )

    def _parameters(self) -> tuple[Parameter, ...]:
        holders = {source.name: x for x, source in self.traced.sources.items() if source.kind == "parameter"}
        return tuple(
            Parameter(
                name=name,
                users=tuple(self.users[holders[name]]) if name in holders else (),
                shape=tuple(tensor.shape),
                dtype=_dtype(tensor),
                bytes=_bytes(tensor),
                trainable=tensor.requires_grad,
                aliases=self.traced.aliases.get(name, ()),
                written=name in self.use.written,
            )
            for name, tensor in self.module.named_parameters()
        )

    def _buffers(self) -> tuple[Buffer, ...]:
        holders = {s.name: x for x, s in self.traced.sources.items() if s.kind in ("buffer", "constant")}
        tensors: Mapping[str, Tensor] = dict(self.module.named_buffers()) | self.traced.constants
        for name in (name for name, tensor in tensors.items() if tensor.layout != torch.strided):
            raise BadInput(
                f"buffer '{name}' is sparse, and a plan carries dense tensors",
                where=place_of(self.module, name, f"buffer '{name}'"),
                allowed="a dense one, by to_dense()",
            )
        return tuple(
            Buffer(
                name=name,
                users=tuple(self.users[holders[name]]) if name in holders else (),
                shape=tuple(tensor.shape),
                dtype=_dtype(tensor),
                bytes=_bytes(tensor),
                mutated=name in self.use.written,
                remembered=name in self.use.written & self.use.read,
                update=self.updates.get(name, ""),
            )
            for name, tensor in tensors.items()
        )


def signature(layout: Slicing, index: int) -> str:
    """Returns the signature of a layer: layers of one signature cost the same.

    Args: `index` is the number of the layer.
    """
    made = [name for x, name in layout.crossing.items() if layout.grouping.layer_of[x] == index]
    return _Signature(layout, layout.take(index, index), made).text()


class _Signature:
    """A hash of a layer's operations, shapes and types without names: layers of one signature cost the same."""

    def __init__(self, layout: Slicing, taken: Slice, made: list[str]) -> None:
        self.layout, self.taken, self.made = layout, taken, made
        self.number: dict[fx.Node, int] = {}

    def text(self) -> str:
        facts: list[object] = []
        for node in (*self.taken.reads, *self.taken.states):
            self.number[node] = len(self.number)
            source = self.layout.traced.sources.get(node)
            facts.append([self._shape(node), source is not None and source.kind])
        for node in self.taken.nodes:
            self.number[node] = len(self.number)
            facts.append([_operation(node), self._rendered(node), self._shape(node)])
        facts.append([self.number[x] for x, name in self.layout.crossing.items() if name in set(self.made)])
        text = json.dumps(facts, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _rendered(self, node: fx.Node) -> str:
        if self.layout.is_size(node):
            return ""
        context = repr(node.meta["context"]) if node.meta["context"] else ""
        return repr((fx.map_arg((node.args, dict(node.kwargs)), lambda x: f"%{self.number[x]}"), context))

    def _shape(self, node: fx.Node) -> list[object]:
        facts: list[object] = []
        for probe in self.layout.probes:
            value = probe.value[node]
            if isinstance(value, Tensor):
                numbers = [x if isinstance(x, int) else "?" for x in (*value.shape, *value.stride())]
                facts += [value.ndim, numbers, str(value.dtype), value.requires_grad]
            else:
                facts.append(value if isinstance(value, int | float) else type(value).__name__)
        return facts


def _operation(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.replace("::", ".")
    return getattr(node.target, "__name__", str(node.target))


def _role(source: Source | None) -> Literal["input", "target"]:
    assert source is not None
    return "input" if source.kind == "input" else "target"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
