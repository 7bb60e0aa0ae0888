"""Makes one specimen of every distinct layer: the shapes that reach it, and tensors of these shapes, fake or real.

Real tensors are made up. Activations are normal. Weights are small and positive, so that nothing overflows. Indices
that come from no batch are 0, and masks are True. Values of the batch are the workload's own. So no more than one
layer's tensors ever need to fit, however large the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture import Captured, StageModule, layer_module, materialise
from planner.measure.passes import Apart, BackwardSplit, Forward, HalvedLayer, SpatialSplit, Specimen, Values
from planner.model import Buffer, Layer, Parameter
from planner.spatial import Layout

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("fp32", *_AUTOCAST)


@dataclass(frozen=True, slots=True)
class TensorShape:
    """All of a tensor but its contents."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorShape:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad)

    @property
    def bytes(self) -> int:
        return torch.Size(self.size).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The first layer of a signature and what reaches it: whole samples, or with a grid one shard of them."""

    layer: Layer
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...] = ()
    grid: tuple[int, ...] = ()
    delivered: Mapping[str, Layout] = field(default_factory=dict)  # how the inputs that come cut are cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The settings under which layers run: precision, device, compilation, and the runtime's tools for halves and
    shards.
    """

    precision: str = "fp32"
    device: str = "cpu"
    compiled: bool = False
    split: BackwardSplit | None = None
    spatial: SpatialSplit | None = None

    def entered(self, forward: Forward) -> Forward:
        """Returns a forward that runs in the precision of these settings.

        Args: `forward` is run under autocast where the precision is not fp32.
        """

        context = in_precision(
            self.precision, self.device
        )  # to make it anew takes longer than a layer on a GPU

        def run(values: Values) -> Values:
            with context:
                return forward(values)

        return run


def situations(captured: Captured, batch: Mapping[str, Tensor], way: Way) -> list[Situation]:
    """Returns the first layer of each signature with the whole samples that reach it.

    Args: `batch` are the tensors of one micro-batch.
    """
    found: dict[str, Situation] = {}
    shapes = value_shapes(captured, batch, way)
    for layer in captured.graph.layers:
        if layer.signature not in found:
            inputs, outputs = (tuple(shapes[x] for x in names) for names in (layer.inputs, layer.outputs))
            found[layer.signature] = Situation(layer=layer, inputs=inputs, outputs=outputs)
    return list(found.values())


def value_shapes(captured: Captured, batch: Mapping[str, Tensor], way: Way) -> dict[str, TensorShape]:
    """Returns the shape of every Value, by a walk through the model on fake tensors in the precision asked for.

    Equal layers with equal inputs are run once.

    Args: `batch` are the tensors of one micro-batch.
    """
    shapes = {name: TensorShape.of(tensor) for name, tensor in batch.items()}
    known: dict[tuple[str, tuple[TensorShape, ...]], tuple[TensorShape, ...]] = {}
    for layer in captured.graph.layers:
        inputs = tuple(shapes[name] for name in layer.inputs)
        key = (layer.signature, inputs)
        if key not in known:
            known[key] = outputs_of(captured, Situation(layer=layer, inputs=inputs), way)
        shapes |= zip(layer.outputs, known[key], strict=True)
    return shapes


def outputs_of(captured: Captured, situation: Situation, way: Way) -> tuple[TensorShape, ...]:
    """Returns the shapes of a layer's outputs from one run on fake tensors.

    Args: only the precision and the spatial split of `way` count.
    """
    plain = Way(precision=way.precision, spatial=way.spatial)
    with FakeTensorMode():
        return tuple(TensorShape.of(x) for x in fake_specimen(captured, situation, plain).outputs())


def fake_specimen(captured: Captured, situation: Situation, way: Way) -> Specimen:
    """Returns a layer with fake tensors to run it on.

    Args: the caller has entered a FakeTensorMode, and uses the specimen in it.
    """
    layer = situation.layer
    tensors = {
        row.name: torch.empty(row.shape, dtype=getattr(torch, row.dtype)) for row in _states(captured, layer)
    }
    pairs = zip(layer.inputs, situation.inputs, strict=True)
    values = {name: _empty(shape, way.device) for name, shape in pairs}
    return _specimen(captured, situation, tensors, values, way)


def real_specimen(
    captured: Captured, situation: Situation, batch: Mapping[str, Tensor], way: Way
) -> Specimen:
    """Returns a layer with real tensors to run it on, on the device of `way`.

    Args: `batch` are the Values that the workload gives; all others are made up.
    """
    layer = situation.layer
    tensors = {row.name: made_up_weights(row.shape, row.dtype) for row in _states(captured, layer)}
    values = {
        name: batch[name].to(way.device) if name in batch else _activations(shape, way.device)
        for name, shape in zip(layer.inputs, situation.inputs, strict=True)
    }
    return _specimen(captured, situation, tensors, values, way)


def _states(captured: Captured, layer: Layer) -> list[Parameter | Buffer]:
    graph = captured.graph
    return [*(graph.parameter[x] for x in layer.parameters), *(graph.buffer[x] for x in layer.buffers)]


def _specimen(
    captured: Captured, situation: Situation, tensors: Mapping[str, Tensor], values: Values, way: Way
) -> Specimen:
    module = _module(captured, situation, tensors, way)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    run: Forward = torch.compile(module, dynamic=False) if way.compiled else module
    forward = way.entered(run)

    def other() -> StageModule:
        made = _module(captured, situation, tensors, way, owing=True)
        made._parameters.update(module._parameters)
        made._buffers.update(module._buffers)
        return made

    halves, walked = _halves(way, forward, other)
    return Specimen(
        layer=situation.layer,
        forward=forward,
        halves=halves,
        walked=walked,
        inputs=values,
        parameters=tuple(module.parameters()),
        buffers=tuple(module.buffers()),
        on_shards=bool(situation.grid),
    )


def _halves(
    way: Way, forward: Forward, module: Callable[[], StageModule]
) -> tuple[HalvedLayer, HalvedLayer | None]:
    if way.split is None:
        return Apart(forward), None
    halves = _Entered(way.split.of(module()), way)
    return halves, halves if halves.walks else _Entered(way.split.walked(module()), way)


def _module(
    captured: Captured,
    situation: Situation,
    tensors: Mapping[str, Tensor],
    way: Way,
    *,
    owing: bool = False,
) -> StageModule:
    module = materialise(layer_module(captured, situation.layer.name), tensors, way.device)
    if way.split is not None and not way.compiled:
        way.split.draw(module, way.device)
    if situation.grid:
        assert way.spatial is not None
        way.spatial.shard(module, situation.grid, situation.delivered, owing=owing)
    return module


class _Entered:
    """A halved layer whose forward runs in the precision asked for."""

    def __init__(self, halves: HalvedLayer, way: Way) -> None:
        self.forward = way.entered(halves.forward)
        self.input_half, self.weight_half = halves.input_half, halves.weight_half
        self.walks = halves.walks


def in_precision(precision: str, device: str) -> AbstractContextManager[object]:
    """Returns the context in which layers run in a precision.

    Args: `precision` is fp32 (no autocast), bf16 or fp16.
    """
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=_AUTOCAST[precision])


def _empty(shape: TensorShape, device: str) -> Tensor:
    tensor = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=device)
    return tensor.requires_grad_(shape.requires_grad)


def _activations(shape: TensorShape, device: str) -> Tensor:
    tensor = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=device)
    if tensor.is_floating_point() or tensor.is_complex():
        _flat(tensor).normal_()
    else:
        tensor.fill_(shape.dtype == torch.bool)
    return tensor.requires_grad_(shape.requires_grad)


def _flat(tensor: Tensor) -> Tensor:
    """Returns the storage itself as a flat tensor, because an expanded tensor cannot be written to through its own
    shape.
    """
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor, (count,), (1,), 0)


def made_up_weights(shape: Sequence[int], dtype: str) -> Tensor:
    """Returns a weight of positive numbers whose products stay near 1, however many inputs a layer adds up.

    Args: `dtype` is the name of a torch dtype; integers are 0, booleans True.
    """
    tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype))
    if not tensor.is_floating_point():
        return tensor.fill_(tensor.dtype == torch.bool)
    fan_in = tensor[0].numel() if tensor.ndim > 1 else 1
    return tensor.uniform_(0.5, 1.5).div_(max(1, fan_in))
