"""Evaluation between the steps of a plan: the losses of the user's module after `eval()`, and no trace in training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from planner.plan import Plan
from planner.workload import workload as workloads
from runtime.launch.script import Run
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.spatial.test_plans import spatially
from tests.runtime.test_equality import HERE, plan_of

WORKLOAD = HERE + "evaluated.py"
STEPS = 3
SCRIPT = f"""
import json, sys
from pathlib import Path
from safetensors.torch import save_file
from runtime.launch import Run

out, times = Path(sys.argv[1]), int(sys.argv[2])
with Run.open("ignored.yaml") as run:
    losses, evaluated = [], []
    for batch in run.batches():
        evaluated.append([run.evaluate_batch(batch) for _ in range(times)])
        losses.append(run.step(batch))
        if run.steps_done == {STEPS}:
            break
    state = run.state_dict()
    if run.rank == 0:
        save_file(state, out / "state.safetensors")
(out / f"told-{{run.rank}}.json").write_text(json.dumps([losses, evaluated]))
"""

Told = tuple[list[float], list[list[float]], dict[str, Tensor]]


def told(pool: Pool, plan: Plan, folder: Path, times: int) -> Told:
    """Losses and evaluations of all steps, the same on all ranks, and the model at the end."""
    model = Model(plan, *captured_of(WORKLOAD, {}, 2))
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    paths, job = prepare(model, folder / "run", job_of(plan, 1, {}))
    replace(job, script=(str(script), str(folder), str(times))).write(paths)
    pool.run("tests.runtime.jobs:script", len(plan.places), folder=str(paths.root))
    found = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(len(plan.places))]
    assert all(each == found[0] for each in found)
    return *found[0], load_file(folder / "state.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[float]]:
    """Losses of one process, and those of the user's own module in evaluation mode, before each of its steps."""
    plan = plan_of(WORKLOAD, {}, workers=1, micros=4)
    workload = workloads.load(WORKLOAD)
    trained, evaluated = [], []
    with Run.open(plan, tmp_path_factory.mktemp("alone") / "run", workload=workload) as run:
        for batch in run.batches():
            module = workload.build()
            module.load_state_dict(run.state_dict())
            module.eval()
            with torch.no_grad():
                each = [workload.loss(module(x["input"]), x["target"]) for x in batch.values()]
            evaluated.append(float(torch.stack(each).mean()))
            trained.append(run.step(batch))
            if run.steps_done == STEPS:
                return trained, evaluated
    raise AssertionError


SHAPES: dict[str, Callable[[], Plan]] = {
    "one process": partial(plan_of, WORKLOAD, {}, workers=1, micros=4),
    "pipeline": partial(plan_of, WORKLOAD, {}, workers=2, micros=4),
    "chunks, recomputed": partial(plan_of, WORKLOAD, {}, family="zb-v", workers=2, micros=4, recompute=(1,)),
    "data": partial(plan_of, WORKLOAD, {}, workers=1, micros=2, data=2),
    "chimera": partial(plan_of, WORKLOAD, {}, family="chimera", workers=2, micros=4),
    "space": lambda: spatially(plan_of(WORKLOAD, {}, workers=1, micros=4), {0: (2,)}, 2),
    "space and stages": lambda: spatially(plan_of(WORKLOAD, {}, workers=2, micros=4), {0: (2,), 1: ()}, 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_evaluations_between_steps_are_those_of_the_module_and_change_no_step(
    name: str, alone: tuple[list[float], list[float]], pool: Pool, tmp_path: Path
) -> None:
    plan = SHAPES[name]()
    trained, evaluated, state = told(pool, plan, tmp_path / "evaluated", 2)
    plain, _, same = told(pool, plan, tmp_path / "plain", 0)
    assert trained == pytest.approx(alone[0], rel=1e-10)
    assert [first for first, _ in evaluated] == pytest.approx(alone[1], rel=1e-10)
    assert all(first == second for first, second in evaluated)
    assert trained == plain
    assert all(torch.equal(state[key], x) for key, x in same.items()) and state.keys() == same.keys()
