"""The training loop of one rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from planner.capture import settle_memory
from planner.plan import Plan, cards_of, with_store
from runtime import checkpoint as checkpoints
from runtime import world as worlds
from runtime.checkpoint import Checkpoint, CheckpointWriter, Facts
from runtime.dedup import keeping
from runtime.execute import Pulse, Resident, Tensors, profiled
from runtime.kept import masks_of
from runtime.loop import Around
from runtime.rank import Rank, RankOptions, assemble, sleeping
from runtime.runfolder import DriftWatch, Evaluated, Heartbeat, Job, Losses, Paths, append_step
from runtime.trackers import Board, board
from runtime.train.prepare import Model, kept
from runtime.train.stop import NO_STOP, NoPulse, Stop
from runtime.world import World

Batch = Mapping[int, Tensors]  # micro-batch of this replica -> Values of the batch


class Training:
    """The training of one rank, from the checkpoint that it is opened with."""

    def __init__(
        self, model: Model, start: Checkpoint, world: World, job: Job, paths: Paths, pulse: Pulse
    ) -> None:
        plan, captured, workload = model.plan, model.captured, keeping(model.workload, job.samples)
        self.plan, self.graph = plan, captured.graph
        self.world, self.job, self.paths, self._resident = world, job, paths, Resident()
        limit, by, masks = job.limit, job.clip_by, masks_of(plan, captured.graph, job, paths)
        options = RankOptions(
            seed=job.seed, shard=job.shard, clip_norm=limit, clip_by=by, ema=job.ema, masks=masks
        )
        self.rank: Rank = assemble(
            plan,
            captured,
            world,
            make_optimizer=workload.optimizer,
            lr_schedule=workload.lr_schedule,
            load=start,
            options=options,
            pulse=pulse,
        )
        self.rank.resume(start)
        self.rank.tracer.start = job.generation
        self.done, self.sample, self._training = start.facts.step, start.facts.sample, start.facts.training
        self._processor_s = 0.0  # of the last step
        self._around = Around(self.rank, workload, captured, job, paths, pulse)
        self._around.resume(start)
        self._writer = CheckpointWriter(
            paths.checkpoints,
            rank=world.rank,
            ranks=range(world.size),
            names=captured.saved,
            keep=kept(job),
            beat=pulse.beat,
        )
        self.rank.updater.before = self._writer.until_on_file
        opened = partial(board, paths, first=self.done + 1, generation=job.generation)
        self._board: Board | None = opened(samples=plan.batch.samples) if world.rank == 0 else None

    def batches(self) -> Iterator[Batch]:
        """Yields the batches from where the training stands, without end."""
        return self._around.steps(self.sample)

    def step(self, batch: Batch) -> Losses:
        """Trains one step.

        Args: `batch` is the next one of `batches()`.
        Returns: the losses of micro-batches whose last stage is on this rank.
        """
        before = time.thread_time()
        wanted = self.job.profile_step == self.done + 1
        profile = self.paths.rank_profile(self.world.rank) if wanted else None
        losses = profiled(partial(self.rank.step, self.done + 1, batch), profile)
        self._processor_s = time.thread_time() - before
        self.done += 1
        self.sample += self.plan.batch.samples
        return losses

    def measured_step(self, batch: Batch) -> Losses:
        """Trains one step and puts its peak of memory into the trace, which is slow on the host.

        Args: `batch` is the next one of `batches()`.
        Returns: the losses of micro-batches whose last stage is on this rank.
        """
        losses, peak = self.rank.with_peak(partial(self.step, batch))
        self.rank.tracer.sample_memory(self.done, peak)
        return losses

    def save(self) -> None:
        """Writes a checkpoint in the background, and the trace so far. All ranks call it."""
        facts = Facts(
            step=self.done,
            sample=self.sample,
            seed=self.job.seed,
            fingerprint=self.graph.fingerprint,
            extra=self._around.extra(),
            training=self._training,
        )
        self._writer.save(self.rank.part(), facts, self._around.spared)
        self.write_trace()
        if self._around.callbacks.wants("on_checkpoint"):
            self._writer.wait()
            self._call("on_checkpoint", checkpoint=checkpoints.folder_of(self.paths.checkpoints, self.done))

    def write_trace(self) -> None:
        self.rank.tracer.save(self.paths.rank_trace(self.world.rank))

    def evaluate_batch(self, batch: Batch) -> Losses:
        """Evaluates one batch; no state changes.

        Args: `batch` is like those of `batches()`.
        Returns: the losses of micro-batches whose last stage is on this rank.
        """
        return self.rank.evaluate(batch, self.plan.batch.micro)

    def evaluate(self, data: object | None = None) -> Evaluated:
        """Evaluates a dataset, each sample once; no state changes. All ranks call it and get the same.

        Args: `data` is a map-style dataset; the workload's `valid_dataset()` where it is not given.
        """
        return self._around.evaluate(self.done, data)

    def loss_of(self, losses: Losses) -> float:
        """Returns the mean loss of a step on every rank, the same to the bit.

        Args: `losses` are those on this rank.
        """
        return self._around.loss_of(losses)

    def flush(self) -> None:
        """Waits until the checkpoint that is being written is complete."""
        self._writer.wait()

    def finish(self) -> None:
        """Waits until all messages are sent and the checkpoint is complete, then writes the trace.

        Raises: OSError where the last checkpoint could not be copied.
        """
        self._writer.close()
        self.rank.transport.drain()
        self.write_trace()
        held = {"base": self._resident.base_bytes, "most": self._resident.most_bytes}
        self.paths.rank_resident(self.world.rank).write_text(json.dumps(held))

    def record(self, losses: Losses, seconds: float, waited_s: float = 0.0) -> None:
        """Writes one line of metrics for the step just done.

        Args: `losses` are those of the step on this rank; `seconds` is its duration, `waited_s` of it for samples.
        """
        row: dict[str, object] = {
            "step": self.done,
            "generation": self.job.generation,  # a step may be done again, and under another plan
            "micros": self.plan.batch.whole,  # of all replicas
            "seconds": seconds,
            "samples": self.plan.batch.samples,
            "losses": losses,
        }
        row |= {"waited_s": round(waited_s, 6), **self._around.of_update()}
        if self.world.device.type == "cpu":
            row["machine"] = self._machine()
        append_step(self.paths.rank_metrics(self.world.rank), json.dumps(row))
        if self._board is not None:
            self._board.look()

    def _machine(self) -> list[float]:
        """Returns what tells of the last step whether other work took processors from this rank."""
        busy_s = self.rank.tracer.busy_ns(self.done) * 1e-9
        load = os.getloadavg()[0]
        return [*(round(x, 6) for x in (self._processor_s, busy_s, load)), len(os.sched_getaffinity(0))]

    def leave(self) -> None:
        """Waits for all ranks after the last step, then writes the last events for TensorBoard."""
        self.world.barrier()
        if self._board is not None:
            self._board.close()

    def run(self, stop: Stop = NO_STOP) -> bool:
        """Trains the steps of the job, with metrics and trace in the run folder.

        Args: `stop` is asked before every step; a training that stops leaves a checkpoint.
        Returns: whether the last step of the job is done.
        """
        try:
            return self._run(stop)
        except Exception as error:
            self._around.failed(self.done, error)
            raise

    def _run(self, stop: Stop) -> bool:
        data, drift = self.batches(), DriftWatch(with_store(self.plan, self.job.store), self._around.readers)
        while self.done < self.job.steps and not self._around.watch.ended and not stop.before(self.done + 1):
            start = time.monotonic()
            batch, measure = next(data), self.job.memory_step == self.done + 1
            waited_s = time.monotonic() - start
            losses = (self.measured_step if measure else self.step)(batch)
            took_s = time.monotonic() - start
            self.record(losses, took_s, waited_s)
            if self.world.rank == 0 and (said := drift.step(took_s, waited_s)):
                print(f"step {self.done}: {said}", flush=True)
            if self._around.callbacks.wants("on_step"):
                told = {"loss": self.loss_of(losses), "seconds": took_s, **self._around.of_update()}
                self._call("on_step", **told)
            if self._due():
                self.save()
        finished = self.done >= self.job.steps or self._around.watch.ended
        if not finished:
            self.save()
        self.finish()
        return finished

    def _due(self) -> bool:
        """Evaluates where it is due, and returns whether a checkpoint is due."""
        job, found = self.job, self._around.validate(self.done)
        if found is not None:
            self._call("on_evaluation", values=found.values, best=found.best)
        best = found is not None and found.best and job.keep_best
        every = bool(job.save_every and self.done % job.save_every == 0)
        return best or every or self._around.watch.ended or self.done == job.steps

    def _call(self, role: str, **told: Any) -> None:
        """Calls a callback; where it raises, all ranks write a checkpoint and end."""
        error = self._around.call(role, self.done, **told)
        if error is not None:
            if role != "on_checkpoint":
                self._around.callbacks.forget("on_checkpoint")
                self.save()
            self.finish()
            raise error


def sleep_rank(paths: Paths, job: Job, plan: Plan, rank: int) -> None:
    """Runs the steps of one rank whose stages sleep, as a process of its own.

    Args: `rank` is the number of this process in the plan.
    """
    torch.set_num_threads(1)
    at = paths.rendezvous(job.generation)
    device, cards = torch.device("cpu"), cards_of(plan)
    world = worlds.join(at, rank, len(plan.places), device, job.rendezvous, cards, job.patience_s)
    made = sleeping(plan, world, Heartbeat(paths.heartbeat, rank, world.size))
    settle_memory()
    for step in range(1, job.steps + 1):
        made.step(step)
    made.transport.drain()
    made.tracer.save(paths.rank_trace(rank))
    world.barrier()
    world.close()


def training_of(paths: Paths, job: Job, model: Model, rank: int, pulse: Pulse | None = None) -> Training:
    """Joins the other ranks and opens the training of this rank at the last complete checkpoint.

    Args: `pulse` is the heartbeat file of the run where it is not given.
    Returns: a training that is ready for its next step.
    """
    torch.set_num_threads(job.threads)
    places, cards, at = model.plan.places, cards_of(model.plan), paths.rendezvous(job.generation)
    device = worlds.gpu_of(places[rank].slot) if job.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = worlds.join(at, rank, len(places), device, job.rendezvous, cards, job.patience_s)
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None, "a run is launched with checkpoint 0"
    if pulse is None:
        pulse = Heartbeat(paths.heartbeat, rank, world.size) if paths.heartbeat.exists() else NoPulse()
    training = Training(model, start, world, job, paths, pulse)
    settle_memory()
    return training


def train_rank(paths: Paths, job: Job, model: Model, rank: int) -> None:
    """Trains one rank from start to end, as a process of its own.

    Args: `rank` is the number of this process in the plan.
    """
    training = training_of(paths, job, model, rank)
    training.run()
    training.leave()
    training.world.close()
