"""Modules that no trace can follow, taken as layers: they run as they are and equal themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from planner.capture import capture
from planner.errors import BadInput
from planner.workload import load
from tests.planner.capture_cases import Case, mse, vectors
from tests.planner.staged import check_case


class Branches(nn.Module):
    """State, chance, keyword arguments, several results, and a branch on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)

    def forward(self, x: Tensor, scale: float = 1.0, *, y: Tensor) -> dict[str, Tensor | None]:
        z = self.drop(self.norm(self.linear(x)))
        if z.sum() > 0:
            z = z * 2
        return {"z": z * scale, "nothing": None, "rows": (z + y).relu().repeat(2, 1)}


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 3), nn.Dropout(0.2)
        self.first, self.second = Branches(), Branches()

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.a(x))
        made = self.first(x, 2.0, y=x)
        again = self.second(made["z"], y=made["rows"].unflatten(0, (2, -1))[0])
        assert again["nothing"] is None
        return self.b(again["z"] + self.second(x, y=x)["z"])


def case() -> Case:
    torch.manual_seed(0)
    return Around(), vectors(4), mse


@pytest.mark.parametrize("seed", range(3))
def test_stages_with_opaque_layers_equal_the_module(seed: int) -> None:
    made = case()
    captured = capture(*made, opaque=["first", "second"])
    assert captured.graph.symbolic_batch
    check_case(made, seed=seed, n=4, captured=captured)


def test_an_opaque_layer_holds_all_that_is_below_it_and_is_not_looked_into() -> None:
    graph = capture(*case(), opaque=["first", "second"]).graph
    assert [layer.name for layer in graph.layers] == ["a", "first", "second", "b", "loss"]
    assert "first.linear.weight" in graph.layer["first"].parameters
    assert graph.buffer["first.norm.running_mean"].mutated
    assert graph.buffer["first.norm.running_mean"].remembered
    assert graph.layer["first"].operations[0] == "opaque_Branches"


def test_without_it_the_branch_is_refused_and_the_way_out_is_told() -> None:
    with pytest.raises(BadInput, match=r"if z\.sum\(\) > 0.*opaque = \["):
        capture(*case())


def test_an_unknown_path_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(BadInput, match=r"no module 'third'.*first\.linear"):
        capture(*case(), opaque=["third"])


WORKLOAD = """
from tests.planner.capture.test_opaque import Around, mse, vectors
build, batch, loss = Around, vectors(4), mse
opaque = {}
"""


def test_a_workload_names_its_opaque_modules(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(WORKLOAD.format('["first", "second"]'))
    assert capture(load(str(path))).graph == capture(*case(), opaque=["first", "second"]).graph


def test_opaque_modules_that_are_no_list_of_paths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(WORKLOAD.format('"first"'))
    with pytest.raises(BadInput, match="a list of module paths"):
        load(str(path))


def choosy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Gives the sum of errors and their number, of which there has to be one."""
    errors = (outputs - targets).square()
    if errors.sum().item() < 0:
        raise ValueError("no errors")
    return errors.sum(), torch.tensor(float(errors.numel()))


def test_a_loss_that_looks_at_values_is_taken_whole_where_it_is_named() -> None:
    model, batch, _ = case()
    with pytest.raises(BadInput, match=r"of the loss, which.*opaque = \['loss'\]"):
        capture(model, batch, choosy, opaque=["first", "second"])
    captured = capture(model, batch, choosy, opaque=["first", "second", "loss"])
    assert captured.graph.symbolic_batch and captured.graph.loss_kind == "sum_count"
    check_case((model, batch, choosy), seed=0, n=4, captured=captured)


def test_a_module_of_that_name_is_meant_before_the_loss_is() -> None:
    model = nn.Sequential()
    model.add_module("loss", nn.Linear(4, 3))
    graph = capture(model, vectors(4), mse, opaque=["loss"]).graph
    assert graph.layers[0].operations[0] == "opaque_Linear"
