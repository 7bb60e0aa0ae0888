"""A supervisor starts while its run is prepared, and trains the model that was captured meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner import plan as plans
from planner.capture import capture
from planner.errors import BadInput, BadPlan
from planner.plan import Plan
from planner.workload import workload as workloads
from runtime.launch import launch_local
from runtime.local.main import handed
from runtime.local.run import hand_over
from runtime.runfolder import Paths
from runtime.train import Model
from tests.captures import FOLDER
from tests.runtime.plans import plan_for
from tests.warm_python import WarmPython

PLAN = Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml"
COUNTED = """\
from pathlib import Path
import torch
from torch import nn

def build():
    with (Path(__file__).parent / "builds").open("a") as file:
        print("built", file=file)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def batch(n): return torch.randn(n, 4), torch.randn(n, 1)
def loss(outputs, targets): return nn.functional.mse_loss(outputs, targets)
"""

TOWERS = """\
import torch
from torch import nn

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)) for _ in range(2))
        self.last = nn.Linear(8, 1)

    def forward(self, x): return self.last(self.left(x) + self.right(x))

def build(): return Towers()
def batch(n): return torch.randn(n, 4), torch.randn(n, 1)
def loss(outputs, targets): return nn.functional.mse_loss(outputs, targets)
"""


@pytest.fixture
def counted(tmp_path: Path) -> Plan:
    """A plan of two stages for a file that counts how often its model is built."""
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    captured = capture(workloads.load(str(file), {}), micro=2)
    (tmp_path / "builds").unlink()
    return plan_for(captured.graph, str(file))


def test_a_model_is_captured_once_for_a_launch(
    counted: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_starts: WarmPython
) -> None:
    monkeypatch.delenv(FOLDER)  # no process reads what other tests have captured
    result = launch_local(counted, tmp_path / "run", steps=2).wait().check()
    assert len(result.losses) == 2
    builds = (tmp_path / "builds").read_text().splitlines()
    assert len(builds) == 2  # to capture the model, and for the weights at the start


def test_what_was_handed_over_is_the_captured_model(counted: Plan, tmp_path: Path) -> None:
    made, paths = Model.of(counted), Paths(tmp_path / "run").make()
    hand_over(made, paths)
    found = _handed(counted, paths)
    assert found is not None
    assert found.captured.graph == made.captured.graph
    assert found.captured.origin != made.captured.origin  # evaluations are captured by who reads


def test_a_model_whose_layers_the_plan_has_in_another_order_is_handed_over_too(tmp_path: Path) -> None:
    file = tmp_path / "towers.py"
    file.write_text(TOWERS)
    captured = capture(workloads.load(str(file), {}), micro=2)
    other = ["right.0", "left.0", "left.1", "right.1", "last", "loss"]
    assert sorted(other) == sorted(captured.graph.index) and other != list(captured.graph.index)
    plan, paths = plan_for(captured.ordered(other).graph, str(file)), Paths(tmp_path / "run").make()
    hand_over(Model.of(plan), paths)
    found = _handed(plan, paths)
    assert found is not None and [layer.name for layer in found.captured.graph.layers] == other


def test_a_file_that_was_edited_since_is_captured_again(counted: Plan, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "run").make()
    hand_over(Model.of(counted), paths)
    file = Path(counted.model.workload)
    file.write_text(file.read_text().replace("Tanh", "ReLU"))
    assert _handed(counted, paths) is None


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '[{"versions": [], "code": {}}, {}]'])
def test_what_cannot_be_read_is_captured_again(damage: str, counted: Plan, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "run").make()
    hand_over(Model.of(counted), paths)
    paths.captured.write_text(damage)
    assert _handed(counted, paths) is None


def test_constants_that_are_gone_are_captured_again(counted: Plan, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "run").make()
    hand_over(Model.of(counted), paths)
    paths.constants.unlink()
    assert _handed(counted, paths) is None


def _handed(plan: Plan, paths: Paths) -> Model | None:
    """What was handed over; None where the model would be captured again."""

    def again(*_: object, **__: object) -> object:
        raise _Again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "of", again)
        try:
            return handed(plan, paths)
        except _Again:
            return None


class _Again(Exception):
    pass


def test_a_launch_that_is_refused_leaves_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_starts: WarmPython
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*words: object, **settings: object) -> object:
        started.append(popen(*words, **settings))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    plan = plans.load(PLAN)
    other = plan.model_copy(
        update={"model": plan.model.model_copy(update={"fingerprint": "sha256:" + "0" * 64})}
    )
    with pytest.raises(BadPlan):
        launch_local(other, tmp_path / "run", steps=1)
    with pytest.raises(BadInput, match="null byte"):
        launch_local(plan, "run\0", steps=1)
    assert [process.poll() for process in started] == [-9]
    assert not (tmp_path / "run").exists()


def test_a_supervisor_that_cannot_start_is_told_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    outcome = launch_local(plans.load(PLAN), tmp_path / "run", steps=1).outcome()
    assert (outcome.state, outcome.cause) == ("failed", "the supervisor ended with status 3")
    assert "no such library" in (tmp_path / "run" / "logs" / "supervisor.log").read_text()
