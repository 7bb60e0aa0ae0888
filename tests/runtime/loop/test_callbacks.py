"""What a user's functions are told, and how a run ends where one of them raises or nothing gets better."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import Plan
from runtime.checkpoint import checkpoint as checkpoints
from runtime.loop.evaluate import Watch
from runtime.runfolder import Paths, evaluations_of, steps_of
from runtime.train import Model, job_of, prepare
from tests.pool import Pool
from tests.runtime.jobs import captured_of
from tests.runtime.loop.test_around import trained
from tests.runtime.test_equality import plan_of

HEAD = "import json\nfrom tests.runtime.workloads.looped import *\n"
TELLS = """
def note(role, happened):
    with open(happened.folder / "told.jsonl", "a") as file:
        row = {"role": role, "step": happened.step, "loss": happened.loss, "values": dict(happened.values)}
        file.write(json.dumps(row | {"checkpoint": str(happened.checkpoint), "best": happened.best}) + "\\n")

def on_step(happened): note("step", happened)
def on_evaluation(happened): note("evaluation", happened)
def on_checkpoint(happened): note("checkpoint", happened)
"""
RAISES = """
def on_step(happened):
    if happened.step == 3:
        raise KeyError("my own")
def on_failure(happened):
    (happened.folder / "failed").write_text(f"{happened.step} {type(happened.error).__name__}")
"""


def plan_with(code: str, folder: Path, **shape: object) -> Plan:
    path = folder / "mine.py"
    path.write_text(HEAD + code)
    return plan_of(str(path), {}, **shape)


def told(paths: Paths) -> list[dict[str, object]]:
    return [json.loads(line) for line in (paths.root / "told.jsonl").read_text().splitlines()]


def test_callbacks_are_told_of_steps_evaluations_and_checkpoints_on_the_first_rank(
    pool: Pool, tmp_path: Path
) -> None:
    plan = plan_with(TELLS, tmp_path, workers=2, micros=2)
    paths = trained(pool, plan, tmp_path / "run", 4, eval_every=2, save_every=2)
    rows, losses = told(paths), {step: row.loss for step, row in steps_of(paths).items()}
    assert [(row["role"], row["step"]) for row in rows if row["role"] != "step"] == [
        ("evaluation", 2),
        ("checkpoint", 2),
        ("evaluation", 4),
        ("checkpoint", 4),
    ]
    assert {row["step"]: row["loss"] for row in rows if row["role"] == "step"} == losses
    assert [row["values"] for row in rows if row["role"] == "evaluation"] == [
        dict(each.values) for each in evaluations_of(paths)
    ]
    assert all(
        Path(str(row["checkpoint"])).is_dir()
        for row in rows
        if row["role"] == "checkpoint" and row["step"] == 4
    )


@pytest.mark.parametrize("shape", [{"workers": 2, "micros": 2}, {"workers": 1, "micros": 1, "data": 2}])
def test_a_callback_that_raises_ends_all_ranks_with_its_traceback_and_a_checkpoint(
    shape: dict[str, int], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_with(RAISES, tmp_path, **shape)
    with pytest.raises(RuntimeError, match="my own") as raised:
        trained(pool, plan, tmp_path / "run", 9)
    assert "mine.py" in str(raised.value) and "KeyError" in str(raised.value)
    paths = Paths(tmp_path / "run")
    last = checkpoints.latest(paths.checkpoints)
    assert last is not None and last.facts.step == 3
    assert (paths.root / "failed").read_text() == "3 KeyError"


def test_a_training_that_gets_no_better_stops_all_ranks_at_one_step_and_not_again(
    pool: Pool, tmp_path: Path
) -> None:
    worse = "def metrics(o, t): return {'worse': (o.sum() * 0 + 1, 1)}\n"
    plan = plan_with(worse, tmp_path, workers=1, micros=1, data=2)
    settings: dict[str, object] = {"eval_every": 2, "patience": 3, "best_by": "worse", "keep_best": True}
    paths = trained(pool, plan, tmp_path / "run", 50, **settings)
    assert max(steps_of(paths)) == 8  # the best at 2, and three that are no better
    found = [path.name for path in checkpoints.complete(paths.checkpoints)]
    assert found[-1] == "step-00000008" and "step-00000002" in found
    trained(pool, plan, tmp_path / "run", 60, **settings)
    assert max(steps_of(paths)) == 8
    trained(pool, plan, tmp_path / "run", 12, **{**settings, "patience": 9})
    assert max(steps_of(paths)) == 12


def test_a_watch_knows_the_best_and_goes_on_from_a_checkpoint() -> None:
    watch = Watch.of("accuracy:max", 2)
    assert [watch.see(i, {"accuracy": x}) for i, x in enumerate((math.nan, 0.5, 0.4, 0.6, 0.6))] == [
        False,
        True,
        False,
        True,
        False,
    ]
    again = Watch.of("accuracy:max", 2)
    again.resume(watch.extra())
    assert again == replace(watch) and not again.ended
    again.see(5, {"accuracy": 0.1})
    assert again.ended
    with pytest.raises(BadInput, match="no value 'accuracy'"):
        again.see(6, {"loss": 0.1})
    with pytest.raises(BadInput, match="'x:up' is no value"):
        Watch.of("x:up", 0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eval_every": 2}, "eval_every needs a dataset to evaluate"),
        ({"patience": 2}, "patience without evaluations"),
        ({"ema": 1.5}, "ema is 1.5"),
        ({"best_by": "loss:up"}, "best_by is 'loss:up'"),
        ({"eval_every": 2, "script": ("train.py",)}, "eval_every with a script"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    plan = plan_of("tests/runtime/workloads/mlp.py", {"layers": "9"}, workers=1, micros=2)
    with pytest.raises(BadInput, match=words):
        prepare(
            Model(plan, *captured_of(plan.model.workload, plan.model.arguments, 2)),
            tmp_path / "run",
            job_of(plan, 2, settings),
        )
    assert not (tmp_path / "run").exists()
