"""What people read of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import shardwright
from planner.plan import Certificate, Plan, Regrid, Rival
from planner.show.text import of_plan, of_profile
from tests.planner import plan_examples as examples

NAME = "1f1b data 2 x pipeline 2, micro-batch 2 x 4"


def with_rivals(*rivals: Rival) -> Plan:
    plan = examples.plan()
    ns = plan.prediction.step_ns
    proof = Certificate(objective_ns=ns, bound_ns=ns, free_bound_ns=ns, gap=0.0, scope="all", rivals=rivals)
    return plan.model_copy(update={"certificate": proof})


def line_of(plan: Plan, name: str) -> str:
    return next(line for line in of_plan(plan).splitlines() if line.startswith(name))


def test_sizes_of_rivals_are_in_units_that_people_read() -> None:
    plan = with_rivals(Rival(name="one device: x", step_ns=10**12, why="fullest worker 8754180 bytes"))
    assert line_of(plan, "one device").endswith("  fullest worker 8.349 MiB")


def test_a_trivial_plan_that_is_the_chosen_one_is_told_as_that() -> None:
    ns = examples.plan().prediction.step_ns
    for name in (f"equal-depth 1f1b: {NAME}", f"equal-depth 1f1b: {NAME}, data innermost", NAME):
        assert "the plan itself" in line_of(with_rivals(Rival(name=name, step_ns=ns, why="a")), name)
    for name, step in ((f"{NAME}0", ns), (NAME, ns + 1), ("equal-depth 1f1b", ns)):
        assert "the plan itself" not in line_of(with_rivals(Rival(name=name, step_ns=step, why="a")), name)


def test_what_is_faster_than_the_plan_is_not_said_to_have_lost() -> None:
    plan = with_rivals(Rival(name="one device", step_ns=1, why="a"), Rival(name="two", step_ns=None, why="b"))
    assert "faster, but not what was asked for; a" in line_of(plan, "one device")
    assert line_of(plan, "two").endswith("does not fit  b")


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
        tmp_path / "small.py", device="roofline:H100-80GB", micros=(1,), grids=[(2,), (2, 2)]
    )
    text = of_profile(found)
    assert (
        "Without a row in parts 2, 2x2: 5, loss. No rule computes them on parts" in text and "?" not in text
    )
    lost = next(key for key in found.costs if not key.split)
    name = next(layer.name for layer in found.graph.layers if layer.signature == lost.signature)
    costs = {key: cost for key, cost in found.costs.items() if key != lost}
    text = of_profile(replace(found, costs=costs, failures={lost: "out of memory"}))
    assert f"Without a row at micro-batch 1: {name}. out of memory" in text


def test_where_samples_are_cut_and_whole_again_stands_beside_each_stage() -> None:
    plain = examples.plan()
    assert "samples" not in line_of(plain, "stage")
    first, *others = plain.stages
    turn = Regrid(before=first.layers[-1], spatial=(2,), samples=False)
    cut = first.model_copy(update={"spatial": (2, 2), "gather_before": "loss", "regrid": (turn,)})
    axes = plain.axes.model_copy(update={"spatial": 4})
    plan = plain.model_copy(update={"axes": axes, "stages": (cut, *others)})
    assert line_of(plan, "stage").split()[:4] == ["stage", "worker", "layers", "samples"]
    _, _, table = of_plan(plan).partition("stage  worker")
    rows = table.splitlines()[1 : 1 + len(plan.stages)]
    assert f"2x2 parts, 2 parts from {first.layers[-1]} on, whole from loss on" in rows[0]
    assert all("  whole  " in row for row in rows[1:])
