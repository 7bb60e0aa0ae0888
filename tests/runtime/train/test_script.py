"""Training from a user's own script: the same lines alone and on every rank of a launched plan."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planner.capture.evaluation import evaluation_of
from planner.capture.stage_modules import whole
from planner.workload import workload as workloads
from runtime.draws import Keys
from runtime.launch.script import Run
from runtime.rank.evaluation import EvaluationStage
from runtime.runfolder import Paths
from runtime.runfolder import job as jobs
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.test_equality import HERE, plan_of

SCRIPT = """
import json, sys
from pathlib import Path
from runtime.draws import Keys
from runtime.launch import Run

out = Path(sys.argv[1])
with Run.open("ignored.yaml") as run:
    losses, evaluated = [], []
    for batch in run.batches():
        evaluated.append(run.evaluate_batch(batch))
        losses.append(run.step(batch))
        if run.steps_done == 3:
            break
    names = sorted(run.state_dict())
(out / f"told-{run.rank}.json").write_text(json.dumps([losses, evaluated, names]))
"""


def told(pool: Pool, plan_shape: dict[str, object], workload: str, folder: Path) -> list[object]:
    plan = plan_of(workload, {}, **plan_shape)
    model = Model(plan, *captured_of(workload, {}, 2))
    script = folder / "script.py"
    script.write_text(SCRIPT)
    paths, job = prepare(model, folder / "run", job_of(plan, 1, {}))
    replace(job, script=(str(script), str(folder))).write(paths)
    pool.run("tests.runtime.jobs:script", len(plan.places), folder=str(paths.root))
    found = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(len(plan.places))]
    assert all(each == found[0] for each in found)  # every rank was told the same
    return found[0]


def alone(plan_shape: dict[str, object], workload: str, folder: Path) -> list[object]:
    plan = plan_of(workload, {}, **plan_shape)
    losses, evaluated = [], []
    with Run.open(plan, folder / "alone", workload=workloads.load(workload)) as run:
        for batch in run.batches():
            evaluated.append(run.evaluate_batch(batch))
            losses.append(run.step(batch))
            if run.steps_done == 3:
                break
        names = sorted(run.state_dict())
    return [losses, evaluated, names]


@pytest.mark.parametrize(
    ("workload", "shape"),
    [
        ("branches.py", {"family": "1f1b", "workers": 2, "micros": 2}),
        ("dropping.py", {"family": "zb-v", "workers": 2, "micros": 4}),
        ("normalised.py", {"family": "1f1b", "workers": 2, "micros": 2, "data": 2}),
        ("branches.py", {"family": "chimera", "workers": 2, "micros": 2}),
        ("drawing.py", {"family": "chimera", "workers": 2, "micros": 2}),  # draws when it is evaluated, too
        ("drawing.py", {"family": "zb-h1", "workers": 2, "micros": 2, "data": 2, "recompute": (1,)}),
    ],
)
def test_a_script_sees_the_same_alone_and_under_a_plan(
    workload: str, shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    many = told(pool, shape, HERE + workload, tmp_path)
    one = alone(shape, HERE + workload, tmp_path)
    assert many[0] == pytest.approx(one[0], rel=1e-6)
    assert many[1] == pytest.approx(one[1], rel=1e-6)
    assert many[2] == one[2]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dropping.py", {}),
        ("normalised.py", {}),
        ("normalised.py", {"momentum": "0"}),
        ("branches.py", {}),
        ("drawing.py", {"noise": "False"}),  # modules taken as they are among them
    ],
)
def test_evaluation_is_that_of_the_module_in_evaluation_mode(name: str, arguments: dict[str, str]) -> None:
    workload, captured = captured_of(HERE + name, arguments, 2)
    torch.manual_seed(0)
    module = workload.build()
    inputs, targets = workload.batch(4)
    for _ in range(2):
        module(inputs)  # statistics that differ from the batch's own
    held = captured.initial(module)
    before = {name: tensor.clone() for name, tensor in held.items()}
    stage = whole(evaluation_of(captured, 2))
    stage.place(torch.device("cpu"))
    made = EvaluationStage(stage, held, Keys(0, torch.device("cpu"))).forward(
        0, captured.batch_values(inputs, targets)
    )
    assert torch.equal(made["loss:0"], workload.loss(module.eval()(inputs), targets))
    assert not made["loss:0"].requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in held.items())


def test_a_whole_state_dict_fits_the_user_s_module(tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=2, micros=2)
    with Run.open(plan, tmp_path) as run:
        run.step(next(run.batches()))
        state = run.state_dict()
    workloads.load(HERE + "branches.py").build().load_state_dict(state)


def test_a_run_that_nobody_holds_is_gone_at_once_and_its_weights_with_it(tmp_path: Path) -> None:
    plan = plan_of(HERE + "branches.py", {"double": "False"}, workers=2, micros=2)
    gc.collect()
    gc.disable()
    try:
        run = Run.open(plan, tmp_path)
        run.step(next(run.batches()))
        run.close()
        weights = [
            weakref.ref(p) for stage in run._training.rank.stages.values() for p in stage.module.parameters()
        ]
        del run
        assert weights and not any(ref() is not None for ref in weights)
    finally:
        gc.enable()


def test_a_job_survives_its_file(tmp_path: Path) -> None:
    job = jobs.Job(steps=3, script=("a.py", "--x"), clip_norm=0.5)
    job.write(Paths(tmp_path))
    assert jobs.read(Paths(tmp_path)) == job
