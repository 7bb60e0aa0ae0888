"""The training loop of one rank, and the same as an object for a user's own script."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Mapping
from functools import partial

import torch

from planner.capture import Captured
from planner.plan import Plan
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime import world as worlds
from runtime.checkpoint import Checkpoint, CheckpointWriter, Facts
from runtime.data import Batches
from runtime.execute import Pulse, Tensors
from runtime.rank import Rank, RankOptions, assemble, sleeping
from runtime.runfolder import DriftWatch, Heartbeat, Job, Losses, Paths, append
from runtime.train.prepare import Model
from runtime.train.stop import NO_STOP, Stop
from runtime.train.tensorboard import Board, board
from runtime.world import World

Batch = Mapping[int, Tensors]  # micro-batch of this replica -> Values of the batch


class NoPulse:
    def beat(self, waiting: bool) -> None: ...


class Training:
    """Assembled from a checkpoint, it goes on from where that stands."""

    def __init__(
        self, model: Model, start: Checkpoint, world: World, job: Job, paths: Paths, pulse: Pulse
    ) -> None:
        plan, workload, captured = model.plan, model.workload, model.captured
        self.plan, self.graph = plan, captured.graph
        self.world, self.job, self.paths = world, job, paths
        self.rank: Rank = assemble(
            plan,
            captured,
            world,
            make_optimizer=workload.optimizer,
            lr_schedule=workload.lr_schedule,
            load=start.parameters,
            options=RankOptions(seed=job.seed, clip_norm=job.clip_norm, clip_by=job.clip_by),
            pulse=pulse,
        )
        self.rank.resume(start)
        self.done, self.sample = start.facts.step, start.facts.sample
        self._batches = self._data(captured, workload)
        self._writer = CheckpointWriter(
            paths.checkpoints,
            rank=world.rank,
            ranks=range(world.size),
            names=captured.saved,
            keep=job.keep,
            beat=partial(pulse.beat, True),
        )
        self._board = self._opened_board() if world.rank == 0 else None

    def _opened_board(self) -> Board | None:
        samples = self.plan.batch.samples
        return board(self.paths, first=self.done + 1, generation=self.job.generation, samples=samples)

    def _data(self, captured: Captured, workload: Workload) -> Batches:
        return Batches(
            workload,
            self.rank.wanted(),
            captured.batch_values,
            seed=self.job.seed,
            graph=self.graph,
            pinned=self.world.device.type == "cuda",
            workers=self.job.data_workers,
        )

    def batches(self) -> Iterator[Batch]:
        """From where the training stands, without end."""
        return self._batches.steps(self.sample)

    def step(self, batch: Batch) -> Losses:
        """Losses of the micro-batches whose last stage is on this rank."""
        losses = self.rank.step(self.done + 1, batch)
        self.done += 1
        self.sample += self.plan.batch.samples
        return losses

    def measured_step(self, batch: Batch) -> Losses:
        """A step whose peak of memory goes into the trace; slow on the host."""
        losses, peak = self.rank.with_peak(partial(self.step, batch))
        self.rank.tracer.sample_memory(self.done, peak)
        return losses

    def save(self) -> None:
        """By all ranks; written in the background."""
        facts = Facts(
            step=self.done,
            sample=self.sample,
            seed=self.job.seed,
            fingerprint=self.graph.fingerprint,
            extra=self.rank.extra(),
        )
        self._writer.save(self.rank.part(), facts)
        self.write_trace()

    def write_trace(self) -> None:
        self.rank.tracer.save(self.paths.rank_trace(self.world.rank))

    def evaluate(self, batch: Batch) -> Losses:
        return self.rank.evaluate(batch)

    def flush(self) -> None:
        """Until what is being written is complete."""
        self._writer.wait()

    def finish(self) -> None:
        """Everything sent and written; the trace lies in the run folder."""
        self._writer.wait()
        self.rank.transport.drain()
        self.write_trace()

    def record(self, losses: Losses, seconds: float) -> None:
        """One line of metrics for the step just done."""
        row = {
            "step": self.done,
            "generation": self.job.generation,  # a step may be done again, and under another plan
            "micros": self.plan.batch.micros * self.plan.axes.data,  # of all replicas
            "seconds": seconds,
            "losses": losses,
        }
        append(self.paths.rank_metrics(self.world.rank), json.dumps(row))
        if self._board is not None:
            self._board.look()

    def leave(self) -> None:
        """Once all ranks have told of their last step."""
        self.world.barrier()
        if self._board is not None:
            self._board.close()

    def run(self, stop: Stop = NO_STOP) -> bool:
        """The steps of the job, with metrics and trace in the run folder; whether it came to their end. A stopped one
        leaves a checkpoint of where it stands."""
        data, drift = self.batches(), DriftWatch(self.plan)
        while self.done < self.job.steps and not stop.before(self.done + 1):
            start = time.monotonic()
            measure = self.job.memory_step == self.done + 1
            losses = (self.measured_step if measure else self.step)(next(data))
            took_s = time.monotonic() - start
            self.record(losses, took_s)
            if self.world.rank == 0 and (said := drift.step(took_s)):
                print(f"step {self.done}: {said}", flush=True)
            if self.done == self.job.steps or (self.job.save_every and self.done % self.job.save_every == 0):
                self.save()
        finished = self.done >= self.job.steps
        if not finished:
            self.save()
        self.finish()
        return finished


def sleep_rank(paths: Paths, job: Job, plan: Plan, rank: int) -> None:
    """What each process of a run does whose stages sleep."""
    torch.set_num_threads(1)
    world = worlds.join(
        paths.rendezvous(job.generation), rank, len(plan.places), torch.device("cpu"), job.rendezvous
    )
    made = sleeping(plan, world, Heartbeat(paths.heartbeat, rank, world.size))
    _settle_memory()
    for step in range(1, job.steps + 1):
        made.step(step)
    made.transport.drain()
    made.tracer.save(paths.rank_trace(rank))
    world.barrier()
    world.close()


def training_of(paths: Paths, job: Job, model: Model, rank: int, pulse: Pulse | None = None) -> Training:
    """Joins the other ranks and goes on from the last complete checkpoint."""
    torch.set_num_threads(job.threads)
    size, slot = len(model.plan.places), model.plan.places[rank].slot
    device = torch.device("cuda", slot) if job.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = worlds.join(paths.rendezvous(job.generation), rank, size, device, job.rendezvous)
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None, "a run is launched with checkpoint 0"
    if pulse is None:
        pulse = Heartbeat(paths.heartbeat, rank, size) if paths.heartbeat.exists() else NoPulse()
    training = Training(model, start, world, job, paths, pulse)
    _settle_memory()
    return training


def _settle_memory() -> None:
    """What a capture leaves behind are a million objects; going through them again and again would pause steps."""
    gc.collect()
    gc.freeze()


def train_rank(paths: Paths, job: Job, model: Model, rank: int) -> None:
    """What each process of a run does without a script of the user's."""
    training = training_of(paths, job, model, rank)
    training.run()
    training.leave()
    training.world.close()
