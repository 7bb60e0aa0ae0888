"""Runs plan after plan from one process that has torch imported and models captured: ranks are forked from it, so that
a plan starts in a fraction of a second. It is a process of its own, since one that has solved cannot be forked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import torch

from planner.calibrate import Observation
from planner.capture import Captured
from planner.plan import Plan
from planner.plan import yaml as plan_yaml
from planner.workload import Workload
from planner.workload import workload as workloads
from runtime.launch import observation
from runtime.local import supervise
from runtime.local.main import rank_main
from runtime.runfolder import Outcome, result
from runtime.train import Model, job_of, prepare, prepare_folder

Content = Literal["layers", "sleep"]


class PlanFailed(Exception):
    """A rank of it ended badly."""


@dataclass(frozen=True)
class Pool:
    """`run` is one plan from start to end, in as many processes as it has ranks."""

    asks: IO[str]
    answers: IO[str]
    folder: Path

    def run(self, plan: Plan, *, steps: int, content: Content, memory_step: int = 0) -> Observation:
        folder = self.folder / "run"
        shutil.rmtree(folder, ignore_errors=True)
        (self.folder / "plan.yaml").write_text(plan_yaml.dump(plan))  # a run folder has to be new
        ask = {"folder": str(folder), "steps": steps, "content": content, "memory_step": memory_step}
        self.asks.write(json.dumps(ask) + "\n")
        self.asks.flush()
        answer = json.loads(self.answers.readline() or '{"state": "ended", "cause": "the pool is gone"}')
        if answer["state"] != "done":
            raise PlanFailed(answer["cause"])
        return observation(folder)


@contextmanager
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.pool"]
        root = Path(__file__).parents[1]
        with subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdin is not None and server.stdout is not None
            yield Pool(server.stdin, server.stdout, Path(folder))
            server.stdin.close()


def serve(asks: IO[str], answers: IO[str]) -> None:
    torch.set_num_threads(1)
    known: dict[str, Captured] = {}
    for line in asks:
        ask = json.loads(line)
        folder, steps = Path(ask.pop("folder")), ask.pop("steps")
        outcome = _ended(folder, steps, ask, known)
        answers.write(json.dumps({"state": outcome.state, "cause": outcome.cause}) + "\n")
        answers.flush()


def _ended(folder: Path, steps: int, settings: dict[str, object], known: dict[str, Captured]) -> Outcome:
    plan = plan_yaml.load(folder.parent / "plan.yaml")
    job, model = job_of(plan, steps, settings), None
    if job.content == "sleep":
        paths, job = prepare_folder(plan, folder, job)
    else:
        model = _model(plan, known)
        paths, job = prepare(model, folder, job)
    ranks = len(plan.places)
    outcome = supervise(paths, ranks, job.deadline_s, rank_main(paths, job, plan, model))
    result.result_of(paths, ranks, outcome)
    return outcome


def _model(plan: Plan, known: dict[str, Captured]) -> Model:
    key = plan.model.model_dump_json()
    if key in known:
        return Model(plan, _workload(plan), known[key])
    model = Model.of(plan)
    if model.captured.graph.symbolic_batch:
        known[key] = model.captured
    return model


def _workload(plan: Plan) -> Workload:
    settings = {name: str(value) for name, value in plan.model.arguments.items()}
    return workloads.load(plan.model.workload, settings)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
