"""Ranks on GPUs are processes that inherit nothing, and runs on the host are not shown a GPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from planner import plan as plans
from runtime.launch import launch_local
from runtime.local import afresh, supervise
from runtime.local.main import rank_main, take_gpu
from runtime.runfolder import Job, result_of
from runtime.train import Model, job_of, prepare
from tests.warm_python import WarmPython

PLAN = Path(__file__).parents[3] / "plans" / "mlp-two-stages.yaml"


def test_ranks_that_start_afresh_train_as_forked_ones_do(tmp_path: Path, warm_python: WarmPython) -> None:
    plan = plans.load(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python.python))
        forked = launch_local(plan, tmp_path / "forked", steps=3).wait().check()
    paths, job = prepare(Model.of(plan), tmp_path / "afresh", job_of(plan, 3, {}))
    outcome = supervise(paths, len(plan.places), job.deadline_s, partial(afresh, paths))
    found = result_of(paths, len(plan.places), outcome).check()
    assert found.losses == forked.losses and len(found.losses) == 3


def test_the_cause_of_a_rank_that_starts_afresh_is_told(tmp_path: Path) -> None:
    plan = plans.load(PLAN)
    paths, job = prepare(Model.of(plan), tmp_path / "run", job_of(plan, 3, {}))
    paths.plan.write_text("no plan")
    outcome = supervise(paths, len(plan.places), job.deadline_s, partial(afresh, paths))
    assert outcome.state == "failed" and "plan.yaml" in outcome.cause


def test_jobs_for_gpus_start_their_ranks_afresh_and_capture_nothing_before(tmp_path: Path) -> None:
    plan = plans.load(PLAN)
    main = rank_main(Path(tmp_path), Job(steps=1, device="cuda"), plan, None)  # type: ignore[arg-type]
    assert isinstance(main, partial) and main.func is afresh


@pytest.mark.parametrize(
    ("visible", "rank", "ranks", "gpus", "own", "shares"),
    [
        (None, 2, 4, 4, "2", False),
        ("4,5,6,7", 1, 4, 4, "5", False),
        ("GPU-a, GPU-b", 1, 2, 2, " GPU-b", False),
        (None, 3, 4, 2, "1", True),  # two ranks a GPU, to try a plan
        ("6", 1, 2, 1, "6", True),
    ],
)
def test_each_rank_sees_one_gpu_which_ranks_share_only_where_there_are_too_few(
    visible: str | None, rank: int, ranks: int, gpus: int, own: str, shares: bool
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    take_gpu(environment, rank, ranks, gpus)
    assert environment["CUDA_VISIBLE_DEVICES"] == own
    assert ("NCCL_HOSTID" in environment) == shares


@pytest.mark.parametrize(("device", "seen"), [("cpu", "-1"), ("cuda", "0")])
def test_a_run_on_the_host_sees_no_gpu(
    device: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        pid, stdin = os.getpid(), io.BytesIO()

    given: list[dict[str, str]] = []

    def start(command: list[str], *, env: dict[str, str] | None, **rest: object) -> Started:
        given.append(dict(os.environ) if env is None else env)
        return Started()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(subprocess, "Popen", start)
    launch_local(plans.load(PLAN), tmp_path / "run", steps=1, device=device)
    assert [each["CUDA_VISIBLE_DEVICES"] for each in given] == [seen]
