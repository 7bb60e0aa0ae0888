"""A run that goes on with more and with fewer nodes: the same samples, each once, and the losses of one size."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.errors import BadInput
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import launch, slurm, train
from runtime.launch import Handle, rescale
from runtime.runfolder import steps_of
from runtime.slurm import Options
from tests.slurm.cluster import Cluster
from tests.slurm.jobs import PACED, PATIENCE_S, until_step
from tests.slurm.jobs import launch as launched
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm

STEPS = 24


def plan(data: int, pace_s: str = "0.3") -> Plan:
    arguments = {"pace_s": pace_s, "leaves": "-1"}
    return plan_over(
        PACED, arguments=arguments, ranks_a_node=1, family="1f1b", workers=1, micros=4 // data, data=data
    )


def grown(run: Handle, data: int, warm: Warm, said: list[float]) -> Handle:
    last, begin = max(steps_of(run.paths)), time.time()
    again = rescale(run, plan(data), options=Options(python=str(warm.python)))
    until_step(again, last + 2)
    said.append(time.time() - begin)
    return again


def test_a_run_grows_and_shrinks_and_trains_each_sample_once(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    alone = launch.launch_inline(plan(1, "0"), tmp_path / "alone", steps=STEPS).check().losses
    run, took = launched(warm, plan(1), tmp_path / "run", steps=STEPS, save_every=2), list[float]()
    until_step(run, 2)
    run = grown(run, 4, warm, took)
    assert len({record.stem for record in (run.folder / "tasks").glob("*.json")}) == 4
    run = grown(run, 2, warm, took)
    losses = run.wait(PATIENCE_S).check().losses
    print("rescaled in", took, "s")
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses == pytest.approx(alone, rel=1e-5)
    last = checkpoints.latest(run.paths.checkpoints)
    assert last is not None and last.facts.sample == STEPS * plan(1).batch.samples


def test_another_training_and_a_run_without_a_job_are_refused(tmp_path: Path) -> None:
    run = launch.launch_local(plan(1, "0"), tmp_path / "run", steps=1)
    run.wait(PATIENCE_S)
    with pytest.raises(BadInput, match="no job that waits or runs"):
        rescale(run, plan(2))
    other = plan(2).model_copy(update={"batch": plan(2).batch.model_copy(update={"samples": 16})})
    with pytest.raises(BadInput, match="global batch is 16"):
        rescale(run, other)


def test_the_model_is_captured_while_the_job_still_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, order = launch.launch_local(plan(1, "0"), tmp_path / "run", steps=1), list[str]()
    run.wait(PATIENCE_S)
    monkeypatch.setattr(train.Model, "of", lambda plan: order.append("captured"))
    monkeypatch.setattr(slurm, "stop", lambda paths: order.append("stopped"))
    assert rescale(run, plan(2)).state == "done"
    assert order == ["captured", "stopped"]
