"""Training from a process of the user's own: step by step, or a whole plan in this one process.

Every call of a `StepLoop` returns the same on all ranks.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from planner.errors import BadInput
from planner.plan import Axes, Memory, Place, Plan, ScheduleChoice, StagePlan, StageTimes
from planner.plan import Batch as PlannedBatch
from planner.schedule import generate
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.execute import Pulse
from runtime.runfolder import Job, Outcome, Paths, Result, release, result_of, tell
from runtime.train.prepare import Model, Refuse, job_of, prepare
from runtime.train.stop import NoPulse
from runtime.train.training import Batch, Training, training_of
from runtime.world import alone


class _Launched(NamedTuple):
    paths: Paths
    job: Job
    model: Model
    rank: int
    pulse: Pulse | None


_launched: list[_Launched] = []  # by the launcher, before the script of a rank is run


class StepLoop:
    """One training, step by step. Close it, or use it as a context, so that checkpoints in writing are
    completed.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    @property
    def rank(self) -> int:
        """Returns the number of this rank."""
        return self._training.world.rank

    @property
    def steps_done(self) -> int:
        """Returns the number of steps that the training has done, those before a restart included."""
        return self._training.done

    def batches(self) -> Iterator[Batch]:
        """Yields the batches from where the training stands, without end. Each is what this rank reads of a
        batch.
        """
        return self._training.batches()

    def step(self, batch: Batch) -> float:
        """Trains one step and records its metrics.

        Args: `batch` is the next one of `batches()`.
        Returns: the mean loss of the step, the same on all ranks.
        """
        start = time.monotonic()
        losses = self._training.step(batch)
        self._training.record(losses, time.monotonic() - start)
        return self._training.loss_of(losses)

    def evaluate(self, data: object | None = None) -> dict[str, float]:
        """Evaluates a dataset as the model runs after `eval()`, each sample once; no state changes.

        The first call captures the model in evaluation mode, which takes about as long as its capture did.
        Args: `data` is a map-style dataset, the same on all ranks; without it, the workload's `valid_dataset()`.
        Returns: "loss" and the workload's metrics by name, the same on all ranks.
        Raises: BadInput or BadPlan with the user's line, where the model cannot be captured in evaluation mode.
        """
        return dict(self._training.evaluate(data).values)

    def evaluate_batch(self, batch: Batch) -> float:
        """Evaluates one batch as the model runs after `eval()`; no state changes.

        Args: `batch` is like those of `batches()`.
        Returns: the mean loss, the same on all ranks.
        Raises: BadInput or BadPlan with the user's line, where the model cannot be captured in evaluation mode.
        """
        return self._training.loss_of(self._training.evaluate_batch(batch))

    def save(self) -> None:
        """Writes a checkpoint of the step just done in the background. All ranks call it.

        Raises: an error of the checkpoint before, which was still being written.
        """
        self._training.save()

    def state_dict(self, *, averaged: bool = False) -> dict[str, Tensor]:
        """Saves a checkpoint and returns the whole model on the host, under the user's own names.

        Args: with `averaged`, trained parameters are the averages that the run keeps under `ema`.
        Raises: BadInput where the checkpoint is gone.
        Returns: the same tensors on every rank.
        """
        self._training.save()
        self._training.flush()
        self._training.world.barrier()
        found = checkpoints.latest(self._training.paths.checkpoints)
        if found is None or found.facts.step != self.steps_done:
            raise BadInput(
                f"the checkpoint of step {self.steps_done} is gone", where=str(self._training.paths.root)
            )
        return found.whole(averaged=averaged)

    def close(self) -> None:
        """Completes what is being written, and waits for all ranks."""
        self._training.finish()
        self._training.leave()
        release(self._training.paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


def launched() -> Training | None:
    """Returns the training of this rank where it was launched to run a script."""
    return training_of(*_launched[0]) if _launched else None


def run_script(paths: Paths, job: Job, model: Model, rank: int, pulse: Pulse | None = None) -> None:
    """Runs a user's script as one rank of a run. Inside, `Run.open` finds the training of this rank.

    Args: `job` names the script and its arguments.
    """
    _launched.append(_Launched(paths, job, model, rank, pulse))
    sys.argv = list(job.script)
    sys.path.insert(0, os.path.dirname(os.path.abspath(job.script[0])))
    runpy.run_path(job.script[0], run_name="__main__")


def train_inline(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    refuse: Refuse,
    **settings: object,
) -> Result:
    """Trains a plan in this process: all layers in one stage, the micro-batches of all replicas one after
    another.

    Args: `settings` are fields of Job; `refuse` raises BadInput where somebody else uses the folder.
    Returns: losses and Timeline of the finished run.
    Raises: whatever the training raises, after it was written down as the outcome.
    """
    training = open_inline(plan, folder, steps=steps, workload=workload, refuse=refuse, **settings)
    paths, before = training.paths, torch.get_num_threads()
    torch.set_num_threads(training.job.threads)
    try:
        training.run()
        training.leave()
    except KeyboardInterrupt:
        tell(paths, Outcome("interrupted", cause="by Ctrl-C"))
        raise
    except BaseException as error:
        tell(paths, Outcome("failed", 0, f"{type(error).__name__}: {error}"))
        raise
    finally:
        torch.set_num_threads(before)
        runfolder.release(paths)
    tell(paths, done := Outcome("done"))
    return result_of(paths, 1, done)


def open_inline(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    refuse: Refuse,
    **settings: object,
) -> Training:
    """Prepares a run folder and opens its training in this process, ready for the first step.

    Args: `settings` are fields of Job; `refuse` raises BadInput where somebody else uses the folder.
    Returns: a training that goes on from the last complete checkpoint of the folder.
    """
    model = Model.of(one_process(plan), workload)
    paths, job = prepare(model, Path(folder), job_of(plan, steps, settings), refuse)
    begin = checkpoints.latest(paths.checkpoints)
    assert begin is not None
    return Training(model, begin, alone(torch.device(job.device)), job, paths, NoPulse())


def one_process(plan: Plan) -> Plan:
    """Returns the same training without its parallelism.

    Returns: a plan with one stage on one rank, and with the samples and micro-batches of `plan`.
    """
    micros = plan.batch.whole
    schedule = generate("1f1b", workers=1, micros=micros)
    choice = ScheduleChoice(
        family="1f1b",
        pairs=1,
        chunks=1,
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        orders=tuple(schedule.to_text().splitlines()),
        settings=dict(schedule.settings),
    )
    total = StageTimes(
        **{name: sum(getattr(t, name) for t in plan.times) for name in StageTimes.model_fields}
    )
    memory = Memory(
        **{name: sum(getattr(row, name) for row in plan.prediction.memory) for name in Memory.model_fields}
    )
    layers = tuple(name for stage in plan.stages for name in stage.layers)
    return plan.model_copy(
        update={
            "axes": Axes(order=plan.axes.order),
            "batch": PlannedBatch(samples=plan.batch.samples, micro=plan.batch.micro, micros=micros),
            "schedule": choice,
            "stages": (
                StagePlan(
                    layers=layers,
                    recompute_before="",
                    spatial=(),
                    gather_before="",
                    regrid=(),
                    shard=None,
                    mesh=(),
                    cut=(),
                ),
            ),
            "places": (Place(rank=0, node=0, slot=0, data=0, pipeline=0, spatial=0),),
            "times": (total,),
            "replica_times": (),
            "hops": (),
            "prediction": plan.prediction.model_copy(update={"memory": (memory,)}),
            "shard_optimizer": False,
        }
    )
