"""The steps of one training for a script or notebook of one's own, and a script that runs on every rank.

What a call returns is the same on every rank.
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
from runtime.runfolder import COUNT, LOSS, Job, Losses, Paths, mean_loss
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
    """One training, step by step; `close` it, or use it as a context, so that what is being written is complete."""

    def __init__(self, training: Training) -> None:
        self._training = training

    @property
    def rank(self) -> int:
        return self._training.world.rank

    @property
    def steps_done(self) -> int:
        return self._training.done

    def batches(self) -> Iterator[Batch]:
        """Batch after batch without end, from where the training stands; each what this rank reads of it."""
        return self._training.batches()

    def step(self, batch: Batch) -> float:
        """One step of training; its mean loss."""
        start = time.monotonic()
        losses = self._training.step(batch)
        self._training.record(losses, time.monotonic() - start)
        return self._mean(losses)

    def evaluate(self, batch: Batch) -> float:
        """Mean loss of one batch in evaluation mode."""
        return self._mean(self._training.evaluate(batch))

    def save(self) -> None:
        """A checkpoint of the step just done, written in the background."""
        self._training.save()

    def state_dict(self) -> dict[str, Tensor]:
        """The whole model under the user's own names, on the host; saves it first."""
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
        self._training.finish()
        self._training.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _mean(self, losses: Losses) -> float:
        """Every micro-batch has one owner, or ranks that share its samples, of which the first one tells it: a sum
        with zeros elsewhere tells all of them to the bit."""
        plan, world = self._training.plan, self._training.world
        table = torch.zeros(plan.batch.micros * plan.axes.data, 2, dtype=torch.float64)
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
    """What each process of a run with a user's script does."""
    _launched.append(_Launched(paths, job, model, rank, pulse))
    sys.argv = list(job.script)
    sys.path.insert(0, os.path.dirname(os.path.abspath(job.script[0])))
    runpy.run_path(job.script[0], run_name="__main__")
