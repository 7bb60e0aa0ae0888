"""What plans with tensors in parts evaluate is what one process does, or is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from planner.plan import Plan
from planner.spatial import NoRule
from runtime.runfolder import Paths
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.layout.test_plans import SEQUENCE, VOCABULARY, in_parts
from tests.runtime.plans import plan_for

TOLD = "tests/runtime/layout/workloads/told_words.py"
ASKED = {"eval_every": 2, "ema": 0.5, "clip_norm": 0.5, "grad_norm": True}


def plan_of(lines: Mapping[str, str], group: int, arguments: dict[str, str]) -> Plan:
    _, captured = captured_of(TOLD, arguments, 2)
    return in_parts(plan_for(captured.graph, TOLD, arguments=arguments, workers=1, micros=2), lines, (group,))


def prepared(plan: Plan, folder: Path) -> Paths:
    model = Model(plan, *captured_of(TOLD, plan.model.arguments, 2))
    return prepare(model, folder, job_of(plan, 4, ASKED))[0]


def told(pool: Pool, plan: Plan, folder: Path) -> list[dict[str, float]]:
    """What a run evaluated after every second step, of averages of weights that were clipped."""
    paths = prepared(plan, folder)
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "lines", [VOCABULARY, SEQUENCE, {"blocks.*": "stored"}], ids=["vocabulary", "sequence", "stored"]
)
def test_an_evaluation_by_parts_is_that_of_one_process(
    lines: Mapping[str, str], pool: Pool, tmp_path: Path
) -> None:
    """Words are chosen among logits that ranks have in parts, and 5 samples leave a short batch at the end."""
    have, want = (told(pool, plan_of(lines if n > 1 else {}, n, {}), tmp_path / str(n)) for n in (2, 1))
    assert len(have) == len(want) == 2
    for one, other in zip(want, have, strict=True):
        numbers = {key: x for key, x in one.items() if isinstance(x, float) and key != "seconds"}
        assert {"loss", "accuracy"} <= numbers.keys()
        assert {key: other[key] for key in numbers} == pytest.approx(numbers, abs=1e-12)


def test_a_metric_that_parts_cannot_give_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NoRule, match=r"aten\.flip"):
        prepared(plan_of(VOCABULARY, 2, {"turned": "true"}), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
