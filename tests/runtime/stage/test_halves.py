from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.capture import capture
from planner.measure import BackwardSplit, measure
from planner.measure.footprint import footprint
from planner.measure.passes import forget_gradients, gradients_of, roots_of, whole_backward
from planner.measure.specimens import Way, fake_specimen, real_specimen, situations
from planner.workload import load
from runtime.stage import Split
from runtime.stage.halves import Stored, Walked

WEIGHTS_ALONE = """
import torch

class Relative(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places = torch.nn.Embedding(16, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.keys = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x + self.keys(self.norm(self.places.weight)).mean(0))

def build():
    return Relative()

def batch(n):
    return torch.randn(n, 8), torch.randn(n, 8)

def loss(outputs, targets):
    return torch.nn.functional.mse_loss(outputs, targets)
"""
MODELS = {"gpt2": {"size": "tiny"}, "unet3d": {"size": "tiny"}, "lstm": {"size": "tiny"}}


@pytest.mark.parametrize("name", MODELS)
def test_the_halves_of_every_layer_add_up_to_its_whole_backward(name: str) -> None:
    workload = load(name, MODELS[name])
    captured = capture(workload)
    torch.manual_seed(0)
    batch = captured.batch_values(*workload.batch(2))
    kinds = set()
    for situation in situations(captured, batch, Way()):
        specimen = real_specimen(captured, situation, batch, Way(split=Split()))
        if not specimen.has_halves:
            continue
        kinds.add(type(specimen.halves.input_half.__self__))  # type: ignore[attr-defined]
        roots = roots_of(specimen.outputs())
        whole_backward(specimen, roots, gradients_of(roots))
        leaves = [*specimen.differentiable_inputs, *specimen.trainable]
        expected = [leaf.grad.clone() for leaf in leaves]  # type: ignore[union-attr]
        forget_gradients(specimen)
        for parameter in specimen.trainable:
            parameter.grad = torch.zeros_like(parameter)
        roots = roots_of(specimen.outputs(specimen.halves.forward))
        specimen.weight_half(specimen.input_half(roots, gradients_of(roots)))
        for leaf, gradient in zip(leaves, expected, strict=True):
            assert torch.allclose(leaf.grad, gradient, rtol=1e-5), situation.layer.name  # type: ignore[arg-type]
    assert kinds <= {Stored, Walked} and kinds


def test_a_layer_that_takes_in_nothing_but_weights_is_measured(tmp_path: Path) -> None:
    """As relative positions are made."""
    (tmp_path / "relative.py").write_text(WEIGHTS_ALONE)
    workload = load(f"{tmp_path}/relative.py")
    captured = capture(workload)
    batch = captured.batch_values(*workload.batch(2))
    found = {x.layer.name: x for x in situations(captured, batch, Way())}
    assert not found["norm"].inputs
    memory = footprint(real_specimen(captured, found["norm"], batch, Way(split=Split())))
    assert memory.output_bytes == (16 * 8 * 4,) and memory.held_bytes >= memory.own_saved_bytes > 0


def test_what_the_weight_half_still_needs_is_measured() -> None:
    """A linear layer waits for its weight gradient with its input and the gradient of its output."""
    workload = load("mlp")
    captured = capture(workload)
    batch = captured.batch_values(*workload.batch(16))
    found = [
        x for x in situations(captured, batch, Way()) if x.layer.parameters and x.inputs[0].requires_grad
    ]
    assert found
    for situation in found:
        with FakeTensorMode():
            way = Way(split=Split())
            memory = footprint(fake_specimen(captured, situation, way))
        least = situation.inputs[0].bytes + situation.outputs[0].bytes
        assert least <= memory.held_bytes <= 2 * least + 256


def test_a_profile_with_executed_halves_need_not_share_out_the_whole() -> None:
    split: BackwardSplit = Split()
    found = measure.profile(load("gpt2", {"size": "tiny"}), "roofline:A100-80GB", micros=(2,), split=split)
    (setting,) = found.settings
    rows = [found.cost(layer.name, setting) for layer in found.graph.layers]
    assert all(row.input_grad.median >= 0 and row.weight_grad.median >= 0 for row in rows)
    assert any(row.input_grad.median + row.weight_grad.median != row.backward.median for row in rows)


@pytest.mark.usefixtures("warm_starts")
def test_the_process_that_measures_makes_the_split_again() -> None:
    found = measure.profile(load("mlp"), "cpu", micros=(1,), split=Split(), seconds_per_row=0.001)
    (setting,) = found.settings
    assert all(found.cost(layer.name, setting).forward.median > 0 for layer in found.graph.layers)


RESIDUAL = """
import torch.nn.functional as F
from torch import Tensor, nn, randn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.line, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        x = self.up(x)
        return self.norm(x + self.line(x))

def build():
    return Residual()

def batch(n):
    return randn(n, 8), randn(n, 8)

def loss(outputs, targets):
    return F.mse_loss(outputs, targets)
"""


def test_between_the_halves_a_layer_holds_what_its_weights_still_need(tmp_path: Path) -> None:
    """Of a residual layer the gradient goes on to the input as it is, and is needed for the weights all the same;
    a norm's weights are paid with the first half, so that nothing of it is left."""
    path = tmp_path / "residual.py"
    path.write_text(RESIDUAL)
    made = measure.profile(load(str(path)), "roofline:cpu", micros=(4,), split=Split())
    (key,) = made.settings
    held = {layer.name: made.cost(layer.name, key).held_bytes for layer in made.graph.layers}
    value = 4 * 8 * 4
    counters = 8  # leaves that stand for what enters
    assert 2 * value <= held["line"] <= 2 * value + counters
    assert held["norm"] <= counters


def test_a_profile_runs_dropout_as_a_rank_does_with_numbers_by_sample() -> None:
    workload = load("gpt2", {"size": "tiny", "dropout": "0.5"})
    captured = capture(workload)
    batch = captured.batch_values(*workload.batch(2))
    found = [x for x in situations(captured, batch, Way()) if x.layer.name == "blocks.0.attention.out"]
    for split, same in ((Split(), True), (None, False)):
        specimen = real_specimen(captured, found[0], batch, Way(split=split))
        (first,), (second,) = specimen.outputs(), specimen.outputs()
        assert torch.equal(first, second) is same
        (halved,) = specimen.outputs(specimen.halves.forward)
        assert torch.equal(first, halved) is same
