"""Stages run one after the other in one process, detached at every boundary, as a pipeline runs them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.capture import Captured, StageModule, capture, cut, materialise
from planner.capture.stage_modules import whole
from planner.capture.traced_graph import call
from planner.model import ModelGraph

SEED = 11


@dataclass
class Outcome:
    loss: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def run_module(module: nn.Module, loss: Callable[..., object], inputs: object, targets: object) -> Outcome:
    """The user's own module and loss."""
    module.train()
    module.zero_grad()
    torch.manual_seed(SEED)
    made = loss(call(module, inputs), targets)
    outputs = list(made) if isinstance(made, tuple) else [made]
    if outputs[0].requires_grad:
        outputs[0].backward()
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return Outcome(outputs, found, dict(module.named_buffers()))


def run_stages(graph: ModelGraph, stages: Sequence[StageModule], values: Mapping[str, Tensor]) -> Outcome:
    torch.manual_seed(SEED)
    known = dict(values)
    ran = []
    for stage in stages:
        given = {name: _boundary(graph, name, known[name]) for name in stage.inputs}
        made = stage(given)
        known |= made
        ran.append((stage, given, made))
    loss = [known[name] for name in graph.layers[-1].outputs]
    flowing = {graph.layers[-1].outputs[0]: torch.ones_like(loss[0])}
    gradients: dict[str, Tensor] = {}
    for stage, given, made in reversed(ran):
        _backward(stage, given, made, flowing, gradients)
    buffers = {name: buffer for stage in stages for name, buffer in stage.named_buffers()}
    return Outcome(loss, gradients, buffers)


def _boundary(graph: ModelGraph, name: str, value: Tensor) -> Tensor:
    if graph.value[name].role != "hidden":
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _backward(
    stage: StageModule,
    given: Mapping[str, Tensor],
    made: Mapping[str, Tensor],
    flowing: dict[str, Tensor],
    gradients: dict[str, Tensor],
) -> None:
    """Consumes the gradients of what a stage made; to those of what it was given it adds its own, in the order in
    which one graph would: what later stages have sent is there first."""
    leaves = {name: value for name, value in given.items() if value.requires_grad}
    roots = {name: x for name, x in (leaves | dict(made)).items() if x.requires_grad and name in flowing}
    weights = {name: p for name, p in stage.named_parameters() if p.requires_grad}
    if not roots:
        return
    found = torch.autograd.grad(
        list(roots.values()),
        [*leaves.values(), *weights.values()],
        [flowing.pop(name) for name in roots],
        allow_unused=True,
    )
    flowing |= {name: part for name, part in zip(leaves, found, strict=False) if part is not None}
    for name, part in zip(weights, found[len(leaves) :], strict=True):
        if part is not None:
            gradients[name] = gradients[name] + part if name in gradients else part


def check_case(
    case: tuple[nn.Module, Callable[[int], tuple[object, object]], Callable[..., object]],
    *,
    seed: int = 0,
    n: int = 2,
    captured: Captured | None = None,
) -> Captured:
    """Asserts that the captured graph equals the module, and that its stages equal the captured graph."""
    module, batch, loss = case
    captured = captured or capture(module, batch, loss)
    graph = captured.graph
    torch.manual_seed(seed)
    inputs, targets = batch(n)
    values = captured.batch_values(inputs, targets)
    initial = {name: tensor.clone() for name, tensor in captured.initial(module).items()}
    copies = pytree.tree_map_only(Tensor, Tensor.clone, inputs)  # a module may write into what it is given
    original = run_module(module, loss, copies, targets)
    one = run_stages(graph, [materialise(whole(captured), initial)], values)
    assert_equal_to_the_bit(one.loss, original.loss)
    for name, buffer in one.buffers.items():
        if name in original.buffers:
            assert torch.equal(buffer, original.buffers[name]), f"buffer {name} of the captured graph"
    assert_close(one.gradients, original.gradients)
    tied = {parameter.name for parameter in graph.parameters if len(parameter.users) > 1}
    for boundaries in random_boundaries(len(graph.layers), seed):
        stages = [materialise(stage, initial) for stage in cut(captured, boundaries)]
        several = run_stages(graph, stages, values)
        assert_equal_to_the_bit(several.loss, one.loss)
        assert_close(several.gradients, one.gradients, exact=one.gradients.keys() - tied)
        for name, buffer in several.buffers.items():
            assert torch.equal(buffer, one.buffers[name]), f"buffer {name}, cut at {boundaries}"
    return captured


def random_boundaries(layers: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [sorted(chance.sample(range(1, layers), k - 1)) for k in (2, 3, 5) if k <= layers]


def assert_equal_to_the_bit(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), (found, wanted)


def assert_close(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], exact: frozenset[str] | set[str] = frozenset()
) -> None:
    """To 1e-6 of the largest entry, or of a millionth of the largest gradient of all where that entry is noise."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    largest = max((float(g.to_dense().abs().max()) for g in wanted.values()), default=0.0)
    for name, gradient in wanted.items():
        a, b = found[name].to_dense(), gradient.to_dense()
        if name in exact:
            assert torch.equal(a, b), f"gradient of {name}"
        else:
            scale = max(float(b.abs().max()), 1e-6 * largest)
            assert float((a - b).abs().max()) <= 1e-6 * scale, f"gradient of {name}"
