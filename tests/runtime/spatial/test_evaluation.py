"""Evaluation on shared samples: learnt statistics, no dropout, and the losses of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.workload import workload as workloads
from runtime.launch.script import Run
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.draws import part
from tests.pool import Pool
from tests.runtime.spatial.test_plans import VOLUME, plan_of
from tests.runtime.train.test_script import SCRIPT

pytestmark = pytest.mark.usefixtures("captures_once")
ARGUMENTS = {"dropout": "0.25"}
SHAPES = {
    "on a grid": ({0: (2, 2)}, 4, {"workers": 1}),
    "with stages": ({0: (2,), 1: (2,)}, 2, {"workers": 2}),
    "gathered between stages": ({0: (2,), 1: ()}, 2, {"workers": 2}),
    "averages of all batches": ({0: (2,)}, 2, {"workers": 1}),
}


@pytest.mark.parametrize("name", part(SHAPES, 2))
def test_evaluation_and_training_alternate_as_in_one_process(name: str, pool: Pool, tmp_path: Path) -> None:
    grids, ranks, shape = SHAPES[name]
    arguments = {**ARGUMENTS, **({"momentum": "0"} if "averages" in name else {})}
    plan = plan_of(VOLUME, grids, ranks, arguments=arguments, micros=2, **shape)
    model = Model(plan, *captured_of(VOLUME, arguments, 2))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths, job = prepare(model, tmp_path / "run", job_of(plan, 1, {}))
    replace(job, script=(str(script), str(tmp_path))).write(paths)
    pool.run("tests.runtime.jobs:script", len(plan.places), folder=str(paths.root))
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(len(plan.places))]
    assert all(each == told[0] for each in told)
    trained, evaluated = [], []
    with Run.open(plan, tmp_path / "alone", workload=workloads.load(VOLUME, arguments)) as run:
        for batch in run.batches():
            evaluated.append(run.evaluate_batch(batch))
            trained.append(run.step(batch))
            if run.steps_done == 3:
                break
    assert told[0][0] == pytest.approx(trained, rel=1e-12)
    assert told[0][1] == pytest.approx(evaluated, rel=1e-12)
    assert evaluated != pytest.approx(trained, rel=1e-6)
