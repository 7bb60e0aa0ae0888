"""Which layers owe their weight gradients, and that no gradient is lost where others cannot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from planner.capture import Captured, StageModule, materialise
from planner.capture.stage_modules import whole
from runtime.stage import WeightStore
from runtime.stage import graph_edits as rewrite
from runtime.stage.halves import Stored, Walked
from tests.captures import captured_of

WORKLOAD = str(Path(__file__).parents[1] / "workloads" / "mixed_weights.py")
NOTHING: set[str] = set()
OWED = {
    "plain": {"w", "b"},
    "frozen weight": {"b"},
    "made weight": NOTHING,
    "frozen weight under a gain": NOTHING,
    "made bias": {"w"},
    "weight out of activations": NOTHING,
    "activations as the weight": NOTHING,
    "weight as its own input": NOTHING,
    "weight used otherwise too": NOTHING,
    "vector as the weight": NOTHING,
    "one sample": {"w", "b"},
    "complex weight": NOTHING,
    "kernel": {"k", "b"},
    "made kernel": NOTHING,
    "kernel with a made bias": {"k"},
    "kernel over one sample": {"k", "b"},
    "table": {"w"},
    "made table": NOTHING,
}


@cache
def case(kind: str) -> tuple[Captured, dict[str, Tensor], dict[str, Tensor]]:
    """With the numbers that it starts from, and those of a batch."""
    torch.manual_seed(0)
    workload, captured = captured_of(WORKLOAD, {"kind": kind}, 4)
    return captured, captured.initial(workload.build()), captured.batch_values(*workload.batch(4))


def module_of(kind: str) -> StageModule:
    captured, initial, _ = case(kind)
    return materialise(whole(captured), initial)


def values_of(kind: str) -> dict[str, Tensor]:
    return {name: x.clone().requires_grad_() for name, x in case(kind)[2].items()}


def stored(module: StageModule) -> Stored:
    store = WeightStore()
    rewrite.store_weights(module, store)
    return Stored(module, store)


def found(module: StageModule, values: dict[str, Tensor]) -> dict[str, Tensor]:
    held = {**values, **dict(module.named_parameters())}
    return {name: x.grad for name, x in held.items() if x.grad is not None}


@pytest.mark.parametrize("kind", OWED)
def test_only_gradients_of_parameters_are_owed(kind: str) -> None:
    module, values = module_of(kind), values_of(kind)
    used = {name for node, name in rewrite.states_of(module).items() if node.users}
    assert rewrite.could_owe(module) & used == OWED[kind]
    halves = stored(module)
    outputs = list(halves.forward(values).values())
    halfway = halves.input_half(outputs, [torch.ones_like(y) for y in outputs], [], [])
    early = found(module, values)
    halves.weight_half(halfway, [])
    assert found(module, values).keys() - early.keys() == OWED[kind]


@pytest.mark.parametrize("split", [stored, Walked])
@pytest.mark.parametrize("kind", OWED)
def test_both_splits_find_every_gradient_of_one_backward(kind: str, split: type[Walked]) -> None:
    module, values = module_of(kind), values_of(kind)
    sum(y.sum() for y in module(values).values()).backward()
    expected = found(module, values)
    module, values = module_of(kind), values_of(kind)
    halves = split(module)
    outputs = list(halves.forward(values).values())
    trained = [p for p in module.parameters() if p.requires_grad]
    given = [torch.ones_like(y) for y in outputs]
    halves.weight_half(halves.input_half(outputs, given, list(values.values()), trained), trained)
    have = found(module, values)
    assert have.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(have[name], gradient, rtol=1e-12, atol=1e-14), name
