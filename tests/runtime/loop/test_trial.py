"""What is the user's own in a training is tried before any rank starts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from planner.errors import BadInput, BadPlan
from planner.plan import Plan
from runtime.runfolder import Paths
from runtime.train import Model, job_of, prepare
from tests.runtime.jobs import captured_of
from tests.runtime.loop.test_callbacks import plan_with

TRIALS = {
    "a metric that there is not": ("", {"best_by": "acuracy:max"}, "no value 'acuracy'.*near"),
    "metrics that fail": (
        "def metrics(outputs, targets): return {'x': (outputs.nothing, 1)}\n",
        {},
        "in evaluation mode.*nothing",
    ),
    "a dataset that raises": (
        "def dataset(): raise OSError('no disk')\n",
        {},
        r"dataset\(\) raised OSError: no disk",
    ),
    "a sample that raises": (
        "class Rows(list):\n    def __getitem__(self, i): raise OSError(f'row {i}')\ndef dataset(): return Rows([1] * 9)\n",
        {},
        r"sample \d raised OSError: row \d",
    ),
    "samples that make no batch": (
        "def collate(samples): return torch.stack([x for x, _ in samples])[:, :1], torch.zeros(2, 1)\n",
        {},
        "allowed",
    ),
    "samples to evaluate that raise": (
        "class Rows(list):\n    def __getitem__(self, i): raise OSError('gone')\ndef valid_dataset(): return Rows([1] * 9)\n",
        {},
        "raised OSError: gone",
    ),
    "an epoch without a whole step": ("", {"drop_last": True}, "has no whole step"),
}


@pytest.mark.parametrize("name", TRIALS)
def test_samples_and_what_is_evaluated_are_tried_before_anything_starts(name: str, tmp_path: Path) -> None:
    code, settings, words = TRIALS[name]
    micros = 500 if "drop_last" in settings else 2
    plan = plan_with(code, tmp_path, workers=1, micros=micros)
    with pytest.raises(BadInput, match=words):
        prepared(plan, tmp_path, eval_every=2, **settings)
    assert not (tmp_path / "run").exists()


def prepared(plan: Plan, folder: Path, **settings: object) -> Paths:
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    return prepare(model, folder / "run", job_of(plan, 2, settings))[0]


def test_where_ranks_run_elsewhere_samples_that_cannot_be_read_here_are_a_warning(tmp_path: Path) -> None:
    plan = plan_with("def dataset(): raise OSError('on the nodes')\n", tmp_path, workers=1, micros=2)
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    said: list[str] = []
    prepare(model, tmp_path / "run", job_of(plan, 2, {}), warn=said.append)
    assert len(said) == 1 and "on the nodes" in said[0]


def test_a_dataset_shorter_than_a_step_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(plan_with("", tmp_path, workers=1, micros=500), tmp_path)
    assert "samples and a step takes 1000" in capsys.readouterr().err


@pytest.mark.parametrize(("room", "fits"), [(2, True), (1, False)])
def test_averages_fit_beside_what_is_predicted_or_are_refused(room: int, fits: bool, tmp_path: Path) -> None:
    plan = plan_with("", tmp_path, workers=1, micros=2)
    _, captured = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)
    trained = sum(parameter.bytes for parameter in captured.graph.trained)
    memory = plan.prediction.memory[0].model_copy(update={"limit": room * trained, "parameters": trained})
    plan = plan.model_copy(update={"prediction": plan.prediction.model_copy(update={"memory": (memory,)})})
    with nullcontext() if fits else pytest.raises(BadPlan, match=r"ema adds \d+; plan with `--fix ema=true`"):
        prepared(plan, tmp_path, ema=0.9)
