"""The steps of one training as methods, for a user's own script or notebook.

Every call returns the same on all ranks.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from planner.errors import BadInput
from runtime import checkpoint as checkpoints
from runtime.execute import Pulse
from runtime.runfolder import COUNT, LOSS, Job, Losses, Paths, mean_loss, release
from runtime.train.prepare import Model
from runtime.train.training import Batch, Training, training_of


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
        return self._mean(losses)

    def evaluate(self, batch: Batch) -> float:
        """Evaluates one batch as the model runs after `eval()`; no state changes.

        The first call captures the model in evaluation mode, which takes about as long as its capture did.
        Args: `batch` is like those of `batches()`.
        Returns: the mean loss, the same on all ranks.
        Raises: BadInput or BadPlan with the user's line, where the model cannot be captured in evaluation mode.
        """
        return self._mean(self._training.evaluate(batch))

    def save(self) -> None:
        """Writes a checkpoint of the step just done in the background. All ranks call it.

        Raises: an error of the checkpoint before, which was still being written.
        """
        self._training.save()

    def state_dict(self) -> dict[str, Tensor]:
        """Saves a checkpoint and returns the whole model on the host, under the user's own names.

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
        return found.whole()

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

    def _mean(self, losses: Losses) -> float:
        """Returns the mean loss of a step on every rank, the same to the bit.

        Each micro-batch is told by one rank, and is zero on the others, so that a sum over ranks is exact.
        """
        plan, world = self._training.plan, self._training.world
        table = torch.zeros(plan.batch.whole, 2, dtype=torch.float64)
        told = losses if self._training.rank.mesh.by_rank[self.rank].spatial == 0 else {}
        for micro, row in told.items():
            table[micro, 0], table[micro, 1] = row[LOSS], row.get(COUNT, 0.0)
        if world.group is not None:
            dist.all_reduce(table, group=world.group)
        counted = self._training.graph.loss_kind == "sum_count"
        rows = [{LOSS: loss, COUNT: count} if counted else {LOSS: loss} for loss, count in table.tolist()]
        return mean_loss(dict(enumerate(rows)))


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
