"""What people read of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import shardwright
from planner.plan import Plan, Regrid, SampleReading, load
from planner.profile import Seconds
from planner.show import plan_lines, text
from planner.show.rivals import reading_text
from tests.planner import plan_examples as examples


def line_of(plan: Plan, name: str) -> str:
    return next(line for line in text(plan).splitlines() if line.startswith(name))


CONVOLUTIONS = """
import torch
def build():
    convolutions = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1)]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)]
    return torch.nn.Sequential(*convolutions, *head)
def batch(n):
    return torch.randn(n, 3, 16, 16), torch.randint(4, (n,))
def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


def test_a_layer_without_a_row_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(CONVOLUTIONS)
    found = shardwright.profile(
        tmp_path / "small.py", device="roofline:H100-80GB", micro=(1,), spatial=[(2,), (2, 2)]
    )
    told = text(found)
    assert (
        "Without a row in parts 2, 2x2: 5, loss. No rule computes them on parts" in told and "?" not in told
    )
    lost = next(key for key in found.costs if not key.split)
    name = next(layer.name for layer in found.graph.layers if layer.signature == lost.signature)
    costs = {key: cost for key, cost in found.costs.items() if key != lost}
    told = text(replace(found, costs=costs, failures={lost: "out of memory"}))
    assert f"Without a row at micro-batch 1: {name}. out of memory" in told


def test_the_times_of_a_measured_profile_have_their_spread_beside_them_and_those_of_a_roofline_have_none(
    tmp_path: Path,
) -> None:
    (tmp_path / "small.py").write_text(CONVOLUTIONS)
    assumed = shardwright.profile(tmp_path / "small.py", device="roofline:H100-80GB", micro=(1,))
    assert "known to" not in text(assumed) and "±" not in text(assumed)

    def unsure(time: Seconds) -> Seconds:
        return replace(time, spread=0.2 * time.median)

    costs = {
        key: replace(cost, forward=unsure(cost.forward), backward=unsure(cost.backward))
        for key, cost in assumed.costs.items()
    }
    told = text(replace(assumed, costs=costs))
    assert "known to" in told and "±20.0 %" in told


def test_where_samples_are_cut_and_whole_again_stands_beside_each_stage() -> None:
    plain = examples.plan()
    assert "samples" not in line_of(plain, "stage")
    first, *others = plain.stages
    turn = Regrid(before=first.layers[-1], spatial=(2,), samples=False)
    cut = first.model_copy(update={"spatial": (2, 2), "gather_before": "loss", "regrid": (turn,)})
    axes = plain.axes.model_copy(update={"spatial": 4})
    plan = plain.model_copy(update={"axes": axes, "stages": (cut, *others)})
    assert line_of(plan, "stage").split()[:4] == ["stage", "worker", "layers", "samples"]
    _, _, table = text(plan).partition("stage  worker")
    rows = table.splitlines()[1 : 1 + len(plan.stages)]
    assert f"2x2 parts, 2 parts from {first.layers[-1]} on, whole from loss on" in rows[0]
    assert all("  whole  " in row for row in rows[1:])


def test_reading_that_makes_steps_longer_is_named_by_the_plan_and_its_explanation() -> None:
    plan = load("plans/mlp-two-stages.yaml")
    assert not any("reading samples" in line for line in plan_lines(plan)) and reading_text(plan) == ""
    needed = plan.batch.micro * plan.batch.micros
    slow = plan.model_copy(update={"data": SampleReading(sample_ns=3 * plan.prediction.step_ns // needed)})
    assert any("reading samples takes a rank" in line for line in plan_lines(slow))
    assert "3 readers a rank would hide it" in reading_text(slow)
