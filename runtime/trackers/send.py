"""Sends a run to the trackers that people keep: its steps, the plan, the predicted step as a line beside the measured
one, and the report.

A run is read from its folder, by a process that may have the network that ranks lack. So ranks import no tracker, and
a run that has ended long ago can be sent too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from planner import plan as plans
from planner.errors import BadInput
from planner.plan import Plan
from runtime.runfolder import MetricLines, Paths, StepMetrics

EVERY_S = 5.0
EXTRA = {"wandb": "wandb", "mlflow": "mlflow"}  # of the package; they are imported by these names


class Tracker(Protocol):
    """One run of a tracker, that steps and files are added to."""

    def step(self, number: int, values: Mapping[str, float]) -> None: ...
    def file(self, path: Path) -> None: ...
    def end(self) -> str: ...


class WandbRun:
    """A run of Weights & Biases, kept offline below the run folder unless WANDB_MODE says otherwise."""

    def __init__(self, paths: Paths, project: str, facts: Mapping[str, object]) -> None:
        self._library = _library("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        with redirect_stdout(None):
            self._run: Any = self._library.init(
                project=project,
                name=paths.root.name,
                dir=str(paths.root),
                mode=mode,
                config=dict(facts),
                settings=self._library.Settings(silent=True, console="off"),
            )
        self._files: list[Path] = []

    def step(self, number: int, values: Mapping[str, float]) -> None:
        """Adds the values of one step, in the order of steps.

        Args: `values` are by name.
        """
        self._run.log(dict(values), step=number)

    def file(self, path: Path) -> None:
        """Adds a file to the artifact of the run.

        Args: `path` is read when the run ends.
        """
        self._files.append(path)

    def end(self) -> str:
        """Completes the run.

        Returns: where it is kept, and how it gets to a server.
        """
        made = self._library.Artifact(f"shardwright-{self._run.id}", type="run")
        for path in self._files:
            made.add_file(str(path), name=path.name)
        self._run.log_artifact(made)
        where = str(Path(self._run.dir).parent)
        online = None if self._run.offline else self._run.url
        self._run.finish()
        return str(online) if online else f"{where} (`wandb sync {where}` sends it)"


class MlflowRun:
    """A run of MLflow, in a database below the run folder unless MLFLOW_TRACKING_URI says otherwise."""

    def __init__(self, paths: Paths, project: str, facts: Mapping[str, object]) -> None:
        library = _library("mlflow")
        self._where = os.environ.get("MLFLOW_TRACKING_URI") or (paths.root / "mlflow").absolute().as_uri()
        if self._where.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = library.tracking.MlflowClient(tracking_uri=self._where)
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(project)
        self._run: str = self._client.create_run(experiment, run_name=paths.root.name).info.run_id
        for name, value in facts.items():
            self._client.log_param(self._run, name, str(value)[:500])
        self._metric: Any = library.entities.Metric

    def step(self, number: int, values: Mapping[str, float]) -> None:
        """Adds the values of one step.

        Args: `values` are by name.
        """
        now = int(time.time() * 1000)
        rows = [self._metric(name, value, now, number) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=rows)

    def file(self, path: Path) -> None:
        """Adds a file to the artifacts of the run.

        Args: `path` is copied now.
        """
        self._client.log_artifact(self._run, str(path))

    def end(self) -> str:
        """Completes the run.

        Returns: where it is kept.
        """
        self._client.set_terminated(self._run)
        return f"{self._where} (run {self._run})"


TRACKERS: Mapping[str, Callable[[Paths, str, Mapping[str, object]], Tracker]] = {
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        said = f"{name} is not installed here"
        raise BadInput(said, where="--to", allowed=f"pip install 'shardwright[{EXTRA[name]}]'") from None


def send(
    folder: Path,
    to: str,
    *,
    project: str = "shardwright",
    files: Callable[[], Sequence[Path]] = list,
    going: Callable[[], bool] = lambda: False,
) -> tuple[int, str]:
    """Sends a run to a tracker, and follows it while it goes on.

    Args: `folder` is a run folder; `to` is a name of `TRACKERS`; `files` gives the artifacts beside the plan, once
      all steps are sent; `going` says whether more steps are to come.
    Returns: the number of steps sent, and where the tracker keeps them.
    Raises: BadInput for another tracker, one that is not installed, or a folder that holds no run.
    """
    if to not in TRACKERS:
        raise BadInput(f"no tracker is called '{to}'", where="--to", allowed=", ".join(TRACKERS))
    paths = Paths(folder)
    if not paths.plan.is_file():
        raise BadInput("is no run folder", where=str(folder), allowed="a folder that launch made")
    plan = plans.load(paths.plan)
    tracker = TRACKERS[to](paths, project, facts_of(plan))
    lines, sent = MetricLines(paths), 0
    while True:
        more = going()
        for number, row in _new(lines, sent):
            tracker.step(number, values_of(row, plan))
            sent = number
        if not more:
            break
        time.sleep(EVERY_S)
    for path in (paths.plan, *files()):
        if path.is_file():
            tracker.file(path)
    return sent, tracker.end()


def _new(lines: MetricLines, sent: int) -> Iterator[tuple[int, StepMetrics]]:
    """Yields steps that every rank has told of since; one that a restart did again counts once, with its last time."""
    found = {step: row for _, step, row in sorted(lines.complete(), key=lambda told: told[:2])}
    yield from ((step, row) for step, row in sorted(found.items()) if step > sent)


def values_of(row: StepMetrics, plan: Plan) -> dict[str, float]:
    """Returns what a tracker gets of a step; the predicted step and its bars are constant lines beside the measured one.

    Args: `plan` is the plan of the run.
    """
    predicted = plan.prediction
    every = {
        "loss": row.loss,
        "step_seconds": row.seconds,
        "samples_per_second": row.samples_per_second,
        "learning_rate": row.learning_rate,
        "gradient_norm": row.gradient_norm,
        "predicted/step_seconds": predicted.step_ns / 1e9,
        "predicted/low_seconds": predicted.low_ns / 1e9,
        "predicted/high_seconds": predicted.high_ns / 1e9,
    }
    return {name: value for name, value in every.items() if not math.isnan(value)}


def facts_of(plan: Plan) -> dict[str, object]:
    """Returns the decisions of a plan by name, for the table that a tracker compares runs in.

    Args: `plan` is that of a run.
    """
    batch = plan.batch
    arguments = {f"model.{name}": value for name, value in plan.model.arguments.items()}
    return {
        "workload": plan.model.workload,
        **arguments,
        "data": plan.axes.data,
        "pipeline": plan.axes.pipeline,
        "spatial": plan.axes.spatial,
        "schedule": plan.schedule.family,
        "pairs": plan.schedule.pairs,
        "chunks": plan.schedule.chunks,
        "samples": batch.samples,
        "micro": batch.micro,
        "micros": batch.micros,
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "devices": len(plan.places),
        "predicted_step_seconds": plan.prediction.step_ns / 1e9,
    }
