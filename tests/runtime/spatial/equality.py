"""A module on shards against itself in one process: output, input gradients, parameter gradients, buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.capture import Captured, StageModule, capture, cut
from planner.spatial import Layout, coordinates, entry
from runtime.spatial import SampleGroup
from runtime.spatial.analyse import Analysed, analyse, value_shapes
from runtime.spatial.group import Wire
from runtime.spatial.shard import shard

Batch = Callable[[int], tuple[object, object]]


@dataclass(frozen=True)
class Reference:
    """A captured module with what one process makes of it."""

    captured: Captured
    tensors: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]  # of the outputs
    input_gradients: Mapping[str, Tensor]
    parameter_gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Made:
    """What one rank makes."""

    outputs: dict[str, Tensor]
    input_gradients: dict[str, Tensor]
    parameter_gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


class Scaled(nn.Module):
    """With a parameter of its own in front, so that what has none is a layer, too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.25))
        self.module = module

    def forward(self, first: Tensor, *rest: Tensor) -> object:
        return self.module(first * self.scale, *rest)


def reference(
    module: nn.Module,
    *shapes: Sequence[int],
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    micro: int = 2,
) -> Reference:
    """Everything before the loss is the stage under test; `shapes` are those of the inputs, batch included."""
    torch.manual_seed(seed)
    module = Scaled(module).to(dtype)
    examples = tuple(torch.randn(tuple(shape), dtype=dtype) for shape in shapes)

    def batch(n: int) -> tuple[object, object]:
        return tuple(torch.zeros(n, *x.shape[1:], dtype=x.dtype) for x in examples), torch.zeros(n)

    captured = capture(module, batch, _loss, micro=micro)  # no trace of one sample
    tensors = {name: tensor.clone() for name, tensor in captured.initial(module).items()}
    stage = cut(captured, [len(captured.graph.layers) - 1])[0]
    values = captured.batch_values(examples, torch.zeros(len(examples[0])))
    stage.materialise(tensors)
    inputs = {name: values[name] for name in stage.inputs}
    leaves = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in inputs.items()}
    outputs = stage(leaves)
    gradients = {name: torch.randn_like(x) for name, x in outputs.items() if x.requires_grad}
    torch.autograd.backward([outputs[name] for name in gradients], list(gradients.values()))
    return Reference(
        captured,
        tensors,
        inputs,
        {name: x.detach() for name, x in outputs.items()},
        gradients,
        {name: _grad(x) for name, x in leaves.items() if x.is_floating_point()},
        {name: _grad(p) for name, p in stage.named_parameters() if p.requires_grad},
        {name: b.clone() for name, b in stage.named_buffers()},
    )


def _loss(outputs: object, targets: Tensor) -> Tensor:
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return sum(part.double().mean() for part in parts)  # type: ignore[no-any-return]


def _grad(x: Tensor) -> Tensor:
    return torch.zeros_like(x) if x.grad is None else x.grad.detach()


def analysed(ref: Reference, grid: Sequence[int], layouts: Mapping[str, Layout] | None = None) -> Analysed:
    stage = stage_of(ref)
    return analyse(stage, grid, layouts or entries(stage, grid))


def entries(stage: StageModule, grid: Sequence[int]) -> dict[str, Layout]:
    """Returns layouts of what a stage reads, cut evenly behind the channels; targets, which losses slice, are left out."""
    sources = stage._layout.traced.sources
    targets = {
        stage._layout.name(node)
        for node in stage._slice.reads
        if node in sources and sources[node].kind == "target"
    }
    return {name: entry(x, grid) for name, x in value_shapes(stage).items() if name not in targets}


def stage_of(ref: Reference) -> StageModule:
    return cut(ref.captured, [len(ref.captured.graph.layers) - 1])[0]


def on_shards(ref: Reference, grid: tuple[int, ...], how: Analysed, wire: Wire) -> Made:
    stage = stage_of(ref)
    stage.materialise(ref.tensors)
    shard(stage, how, SampleGroup(grid, wire))
    place = coordinates(wire.rank, grid)
    parts = {name: part(x, how.inputs[name], place).clone() for name, x in ref.inputs.items()}
    leaves = {name: x.requires_grad_(x.is_floating_point()) for name, x in parts.items()}
    outputs = stage(leaves)
    gradients = {name: part(g, how.outputs[name], place) for name, g in ref.gradients.items()}
    torch.autograd.backward([outputs[name] for name in gradients], list(gradients.values()))
    return Made(
        {name: x.detach() for name, x in outputs.items()},
        {name: _grad(x) for name, x in leaves.items() if x.is_floating_point()},
        {name: _grad(p) for name, p in stage.named_parameters() if p.requires_grad},
        {name: b.clone() for name, b in stage.named_buffers()},
    )


def part(x: Tensor, layout: Layout, place: Sequence[int]) -> Tensor:
    for dim, (low, high) in enumerate(layout.region(place)):
        if layout.cuts[dim] is not None:
            x = x.narrow(dim, low, high - low)
    return x


def differences(ref: Reference, how: Analysed, made: Sequence[Made], grid: Sequence[int]) -> dict[str, float]:
    """Largest relative difference of everything that must be equal, over all ranks."""
    shares = [mine.parameter_gradients for mine in made]
    sums = {
        name: torch.stack([share[name] for share in shares]).sum(0) for name in how.partial & set(shares[0])
    }
    found: dict[str, float] = {}
    for rank, mine in enumerate(made):
        complete = Made(mine.outputs, mine.input_gradients, mine.parameter_gradients | sums, mine.buffers)
        for what, difference in own_differences(ref, how, complete, grid, rank).items():
            found[what] = max(found.get(what, 0.0), difference)
    return found


def own_differences(
    ref: Reference, how: Analysed, mine: Made, grid: Sequence[int], rank: int
) -> dict[str, float]:
    """Of one rank, whose partial gradients have been summed."""
    found: dict[str, float] = {}
    place = coordinates(rank, grid)
    for name, x in mine.outputs.items():
        _worse(found, f"output {name}", x, part(ref.outputs[name], how.outputs[name], place))
    for name, x in mine.input_gradients.items():
        _worse(found, f"gradient of {name}", x, part(ref.input_gradients[name], how.inputs[name], place))
    steepest = max((float(x.abs().max()) for x in ref.parameter_gradients.values()), default=1.0)
    for name, x in mine.parameter_gradients.items():  # a bias before a norm has none but rounding
        _worse(found, f"gradient of {name}", x, ref.parameter_gradients[name], steepest)
    for name, x in mine.buffers.items():
        _worse(found, f"buffer {name}", x, ref.buffers[name])
    return found


def _worse(found: dict[str, float], what: str, got: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    if got.shape != expected.shape:
        found[what] = float("inf")
        return
    if not got.numel():
        return
    finite = expected.double().nan_to_num(nan=7.0, posinf=8.0, neginf=9.0)
    difference = (got.double().nan_to_num(nan=7.0, posinf=8.0, neginf=9.0) - finite).abs().max()
    found[what] = max(found.get(what, 0.0), float(difference / max(scale, 1.0, float(finite.abs().max()))))
