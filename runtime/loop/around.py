"""Opens the samples of a rank, evaluates between its steps, watches what is best, and calls the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from planner.capture import Captured
from planner.errors import BadInput
from planner.plan import readers, with_store
from planner.workload import Workload, evaluable
from runtime.checkpoint import Checkpoint
from runtime.data import Batches, Region, Stream, Wanted
from runtime.execute import Pulse
from runtime.loop.callbacks import Callbacks, Happened
from runtime.loop.evaluate import Watch, evaluate, told_by_all
from runtime.rank import Rank
from runtime.runfolder import (
    COUNT,
    LOSS,
    Evaluated,
    Job,
    Losses,
    Paths,
    is_secondary,
    mean_loss,
    write_evaluation,
    write_whole,
)
from runtime.store import Store, StoreAsked


def cores_of_rank(ranks: int) -> int:
    """Returns the cores that a rank has to itself, by SLURM's word or by sharing those of this machine.

    Args: `ranks` are all on this machine where there is no SLURM.
    """
    told = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(told) if told.isdecimal() else len(os.sched_getaffinity(0)) // max(1, ranks)


def of_shard(wanted: Wanted, job: Job) -> Wanted:
    """Returns what a rank reads where the run has one of several shards of the stream.

    The steps of the stream go round the shards, so that a step of all of them is one of as many replicas.
    """
    samples = wanted.step_samples
    first = wanted.first + job.shard * (samples // wanted.micro)
    return replace(wanted, first=first, step_samples=samples * job.shards)


class Around:
    """The part of a rank's training that is not its steps."""

    def __init__(
        self, rank: Rank, workload: Workload, captured: Captured, job: Job, paths: Paths, pulse: Pulse
    ) -> None:
        self._rank, self._workload, self._captured = rank, workload, captured
        self._job, self._paths, self._pulse = job, paths, pulse
        self.callbacks = Callbacks(workload, rank.world)
        self.watch, self._done = Watch.of(job.best_by, job.patience), 0
        self.samples = self.batches()
        if job.store == "ram":
            self.samples.keep(self._keeper)

    def resume(self, start: Checkpoint) -> None:
        """Goes on from a checkpoint.

        Raises: BadInput where epochs had another number of samples before it, so that its place would be wrong.
        """
        self._done = start.facts.step
        self.watch.resume(start.facts.extra)
        before, now = start.facts.extra.get("epoch_samples"), self._epoch.get("epoch_samples")
        if before is not None and now is not None and before != now:
            raise BadInput(
                f"an epoch has {now:.0f} samples, and had {before:.0f} before",
                where=str(start.folder),
                allowed="the same dataset and sampler; under drop_last a batch that leaves the same epoch",
            )

    def _keeper(
        self, data: object, region: Region, wanted: Wanted, stream: Stream, first_sample: int
    ) -> Store | None:
        rank, file = self._rank, self._paths.rank_store(self._rank.world.rank)
        asked = StoreAsked(
            world=rank.world,
            node=rank.mesh.by_rank[rank.world.rank].node,
            micros=rank.plan.batch.micros,
            steps=self._job.store_steps,
            ends=first_sample + (self._job.steps - self._done) * wanted.step_samples,
            beat=self._pulse.beat,
            tell=lambda told: write_whole(file, json.dumps(told)),
        )
        return asked.open(data, region, wanted, stream, first_sample)

    @property
    def readers(self) -> int:
        """Returns the processes that read samples for this rank."""
        asked, plan = self._job.data_workers, with_store(self._rank.plan, self._job.store)
        return readers(plan, cores_of_rank(len(plan.places))) if asked is None else asked

    @property
    def _epoch(self) -> dict[str, float]:
        stream = self.samples.stream
        return {} if stream.length is None else {"epoch_samples": float(stream.epoch_samples)}

    def steps(self, sample: int) -> Iterator[dict[int, Mapping[str, Tensor]]]:
        """Yields the batches of a training, without end.

        Args: `sample` is where it stands: the samples that it has trained on.
        """
        return self.samples.steps(sample * self._job.shards)

    def batches(self, evaluated: object | None = None) -> Batches:
        """Opens the samples of the training, or those of a dataset that is evaluated.

        Args: `evaluated` is that dataset.
        """
        job, pinned, wanted = self._job, self._job.pin_memory, self._rank.wanted()
        return Batches(
            self._workload,
            of_shard(wanted, job) if evaluated is None else wanted,
            self._captured.batch_values,
            seed=job.seed,
            graph=self._rank.graph,
            pinned=self._rank.world.device.type == "cuda" if pinned is None else pinned,
            workers=self.readers,
            drop_last=job.drop_last,
            evaluated=evaluated,
        )

    @cached_property
    def _valid(self) -> Batches:
        data = self._workload.valid_dataset()
        if data is None:
            raise BadInput("has no valid_dataset()", where=self._workload.where, allowed="one, to evaluate")
        return self.batches(data)

    def evaluate(self, step: int, data: object | None = None) -> Evaluated:
        """Evaluates a dataset, each sample once; no state changes. All ranks call it and get the same.

        Args: `step` is the one just done; `data` is the workload's `valid_dataset()` where it is not given.
        """
        batches = self._valid if data is None else self.batches(evaluable(data, "evaluate()"))
        return evaluate(self._rank, batches, step=step, pulse=self._pulse)

    def validate(self, step: int) -> Evaluated | None:
        """Evaluates where it is due after a step, and writes it down.

        Args: `step` is the one just done.
        Returns: None where it is not due.
        """
        if not self._job.eval_every or step % self._job.eval_every:
            return None
        found = self.evaluate(step)
        found = replace(found, best=self.watch.see(step, found.values))
        if self._rank.world.rank == 0:
            write_evaluation(self._paths, found, self._job.generation)
            if self.watch.ended:
                print(f"stopped early after step {step}: {self.watch.why}", flush=True)
        return found

    @property
    def spared(self) -> int | None:
        """Returns the step of the best evaluation, whose checkpoint stays; None where none is kept."""
        return self.watch.best_step if self._job.keep_best else None

    def extra(self) -> dict[str, float]:
        """Returns what goes on from step to step, for a checkpoint."""
        return self._rank.extra() | self._epoch | (self.watch.extra() if self._job.eval_every else {})

    def loss_of(self, losses: Losses) -> float:
        """Returns the mean loss of a step on every rank, the same to the bit.

        Args: `losses` are those on this rank.
        """
        rank = self._rank
        width, micros = (
            1 + (rank.graph.loss_kind == "sum_count"),
            rank.plan.batch.whole,
        )
        only = {micro: {n: x for n, x in row.items() if n in (LOSS, COUNT)} for micro, row in losses.items()}
        table = told_by_all(rank.world, only, tells=rank.tells, width=width, micros=micros)
        return mean_loss(
            {micro: dict(zip((LOSS, COUNT), row, strict=False)) for micro, row in enumerate(table)}
        )

    def of_update(self) -> dict[str, float]:
        """Returns what this rank knows of the update of a step: learning rate and norm of the gradients.

        Clipped by the norm of the step before, it is that norm.
        """
        updater = self._rank.updater
        norm = updater.norm if updater.previous is None else updater.previous.known
        known = {"learning_rate": updater.rate, "gradient_norm": norm}
        return {name: value for name, value in known.items() if value is not None}

    def call(self, role: str, step: int, **told: Any) -> BaseException | None:
        """Calls the user on an event of a step.

        Returns: what the user's function raised, on every rank.
        """
        return self.callbacks.call(role, Happened(step=step, folder=self._paths.root, **told))

    def failed(self, step: int, error: Exception) -> None:
        """Calls the user's `on_failure` for an error that does not follow from another rank's end."""
        if not is_secondary(error):
            self.callbacks.failed(Happened(step=step, folder=self._paths.root, error=error))
