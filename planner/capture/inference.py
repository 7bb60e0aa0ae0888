"""Captures a model as it is applied to one sample of any size, in evaluation mode and without its loss.

The sample is never made: a volume larger than any memory is captured as fast as a small one.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture.batch import example
from planner.capture.capture import Sizes, Tracing, probed
from planner.capture.captured import Captured, Origin
from planner.capture.describe import describe
from planner.capture.evaluation import without_writes
from planner.capture.fake_run import build_fake
from planner.capture.layers import group
from planner.capture.operations import operation_of
from planner.capture.slices import Slicing
from planner.capture.traced_graph import Source, Traced, line_of
from planner.errors import BadInput, during
from planner.model import ModelGraph
from planner.spatial import INPUT, STATE, Operation
from planner.workload import Workload


@dataclass(frozen=True)
class Forward:
    """A model's forward pass in evaluation mode, for one sample, as operations and the nodes that run them."""

    captured: Captured
    operations: tuple[Operation, ...]  # in order; what the loss would add is left out
    nodes: Mapping[str, fx.Node]  # by the names of the operations
    source: str  # the operation that is the input
    result: str  # and that which makes the output
    dtype: torch.dtype  # of the output

    @cached_property
    def states(self) -> Mapping[str, Source]:
        """Returns the parameters, buffers and constants that the operations read, by operation."""
        sources = self.captured.layout.traced.sources
        return {x.name: sources[self.nodes[x.name]] for x in self.operations if x.operation == STATE}

    @cached_property
    def digest(self) -> str:
        """Returns a hash of every operation that runs, with its numbers, and of the tensors that the code makes.

        Unlike the fingerprint of a graph, this hash sees a number that was changed in `forward`.
        """
        found = hashlib.sha256()
        for node in self.nodes.values():
            context = node.meta.get("context", ())
            found.update(f"{node.name} {node.target} {node.args} {node.kwargs} {context}\n".encode())
        for name, tensor in sorted(self.captured.layout.traced.constants.items()):
            found.update(f"{name} {tensor_digest(tensor)}\n".encode())
        return found.hexdigest()

    def line(self, error: BadInput) -> BadInput:
        """Returns an error about an operation with the user's line beside the module.

        Args: `error` may name a module, as refusals of spatial rules do.
        """
        place = next((line_of(self.nodes[x.name]) for x in self.operations if x.place == error.where), "")
        where = ", ".join(filter(None, (place, f"module '{error.where}'" if error.where else "")))
        return BadInput(error.what, where=where, allowed=error.allowed)


def tensor_digest(tensor: Tensor) -> str:
    """Returns a hash of a tensor's numbers, bit by bit.

    Args: `tensor` has its numbers, on any device.
    """
    plain = tensor.detach().cpu().contiguous().flatten()
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(f"{tuple(tensor.shape)} {tensor.dtype} ".encode() + data).hexdigest()


def sample_of(workload: Workload) -> tuple[int, ...]:
    """Returns the shape of one sample that the workload's model takes, samples and channels first.

    Raises: BadInput where the batch has no single tensor of at least three dimensions as its input.
    """
    mode, _ = build_fake(workload, for_real=False)
    inputs, _ = example(workload.batch, 1, mode)
    if not isinstance(inputs, Tensor) or inputs.dim() < 3:
        given = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise BadInput(
            f"batch() gives inputs {given}",
            where=workload.where,
            allowed="one tensor: samples, channels, space",
        )
    return tuple(int(n) for n in inputs.shape)


def forward_of(workload: Workload, shape: Sequence[int], dtype: torch.dtype) -> Forward:
    """Captures a model's forward pass in evaluation mode.

    Args: `shape` is that of the input with one sample and its channels first; the model and its input become `dtype`.
    Raises: BadInput with the user's line, where the model cannot be captured, or takes or gives more than one tensor.
    """
    if workload.folder is not None:
        raise BadInput(
            "a captured model is captured for the shapes of its batch alone",
            where=workload.where,
            allowed="the file or module with the workload's functions",
        )

    def batch(n: int) -> tuple[Tensor, tuple[()]]:
        return torch.empty(1, dtype=dtype).expand(tuple(shape)), ()

    def build() -> tuple[FakeTensorMode | None, nn.Module]:
        mode, module = build_fake(workload, for_real=False)
        with mode or contextlib.nullcontext():
            return mode, converted(module, dtype)

    origin = Origin(where=workload.where, build=build, batch=batch, loss=_as_loss, opaque=())
    with during("capturing the model"):
        tracing = Tracing.of(origin, training=False)
        graph, layout = tracing.read(None, 1, _read)
    return _forward(Captured(graph, layout, origin))


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Gives a module parameters and buffers of another type, in place; whole numbers stay.

    Args: `module` may be on fake tensors, which `nn.Module.to` cannot convert.
    Returns: the module.
    """
    made: dict[int, Tensor] = {}
    for part in module.modules():
        own: list[dict[str, Any]] = [part._parameters, part._buffers]
        for tensors in own:
            for name, tensor in tensors.items():
                if tensor is None or not tensor.is_floating_point() or tensor.dtype == dtype:
                    continue
                if id(tensor) not in made:
                    new = tensor.detach().to(dtype)
                    made[id(tensor)] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
                tensors[name] = made[id(tensor)]
    return module


def _as_loss(outputs: object, targets: object) -> object:
    """Stands in for a loss, which a capture ends with; what it computes is left out again."""
    if not isinstance(outputs, Tensor):
        raise BadInput(
            f"forward() gives a {type(outputs).__name__}",
            where="the model's output",
            allowed="one tensor; a module around the model may pick it",
        )
    return outputs.to(torch.float32).sum()


def _read(traced: Traced, module: nn.Module, sizes: Sizes) -> tuple[ModelGraph, Slicing]:
    functional, probes = probed(without_writes(traced), module, sizes)
    layout = Slicing(functional, group(functional, probes[0]), probes)
    return describe(layout, module, training=False), layout


def _forward(captured: Captured) -> Forward:
    layout = captured.layout
    sources, values = layout.traced.sources, layout.probes[0].value
    found: list[Operation] = []
    nodes: dict[str, fx.Node] = {}
    result = None
    for node in layout.traced.graph.nodes:
        if node.meta.get("in_loss"):
            result = result or next(x for x in node.all_input_nodes)
            continue
        index = layout.grouping.layer_of.get(node, -1)
        layer = layout.grouping.names[index] if index >= 0 else ""
        if node in sources:
            tensor = values[node]
            assert isinstance(tensor, Tensor)
            kind = INPUT if sources[node].kind == "input" else STATE
            operation: Operation | None = Operation(node.name, "", kind, {}, (tuple(tensor.shape),))
        else:
            operation = operation_of(node, values, layer)
        if operation is not None:
            found.append(operation)
            nodes[operation.name] = node
    inputs = [x.name for x in found if x.operation == INPUT]
    assert result is not None
    made = values[result]
    assert isinstance(made, Tensor)
    if len(inputs) != 1:
        raise BadInput(
            f"forward() reads {len(inputs)} tensors", where="the model's input", allowed="one tensor"
        )
    return Forward(captured, tuple(found), nodes, inputs[0], result.name, made.dtype)
