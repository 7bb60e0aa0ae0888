"""Trains a shard's steps from a version: a whole run of the plan, in a folder of its own, whose checkpoint is kept.

It goes on from the weights of the version and the optimizer state that the shard had at the end of its last round. Its
checkpoint is moved to `results` before its name is written down. So what is written down is whole, or is found not to be
what was written, and is made again.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from planner import plan as plans
from planner.errors import BadInput
from planner.files import read_record
from runtime import checkpoint as checkpoints
from runtime.checkpoint import Checkpoint, CheckpointPart
from runtime.islands.folder import IslandsFolder, IslandsJob, ShardDone, checksum, shard_name
from runtime.leases import Tasks
from runtime.local import RankWatch, afresh, fork_ranks
from runtime.runfolder import Job, Outcome, Paths, losses_of, write_whole
from runtime.train import Model, train_rank

CANCELLED = ("cancelled", "islands are cancelled")


def who() -> str:
    """Returns the name of this process, which no other one has."""
    return f"{socket.gethostname()}-{os.getpid()}"


def discard(path: Path) -> None:
    """Removes a checkpoint; its name goes first, so that nobody reads half of it."""
    gone = path.with_name(f"spoiled-{path.name}.{who()}")
    with suppress(OSError):  # another island has done so
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@dataclass(frozen=True)
class Shards:
    """The shards of the training, as one island trains them."""

    folder: IslandsFolder
    job: Job
    model: Model
    say: Callable[[str], None]

    def tasks(self, number: int, job: IslandsJob) -> Tasks:
        """Returns the tasks of the round that begins with a version."""
        return self.folder.tasks(number, job)

    def result(self, number: int, shard: int) -> Checkpoint | None:
        """Returns what a shard's steps from a version have ended with.

        Returns: None where they are not done; what is spoiled is to be done again.
        """
        done = self.folder.done(number, shard)
        if not done.exists():
            return None
        with suppress(BadInput):
            path = self.folder.results / Path(read_record(ShardDone, done).result).name
            if not checkpoints.flaw(path):
                return Checkpoint.open(path)
            discard(path)
        done.unlink(missing_ok=True)
        return None

    def train(
        self,
        number: int,
        shard: int,
        job: IslandsJob,
        beating: AbstractContextManager[None] | None = None,
    ) -> str:
        """Trains a shard's steps from a version, and writes them down.

        Args: `beating` lets others see that the task is held.
        Returns: words about it.
        Raises: RuntimeError with the cause where the run fails.
        """
        start = time.perf_counter()
        paths = Paths(self.folder.work / f"r{number:06d}-s{shard:05d}-{who()}")
        shutil.rmtree(paths.root, ignore_errors=True)
        try:
            own = self._prepared(paths, number, shard, job)
            outcome = self._run(paths, own, beating or nullcontext())
            if outcome.state == CANCELLED[0]:
                return f"round {number + 1}, shard {shard}: cancelled"
            if outcome.state != "done":
                raise RuntimeError(outcome.cause)
            facts = self._kept(paths, number, shard, own, start)
            self.tasks(number, job).finish(shard_name(shard), asdict(facts))
        finally:
            shutil.rmtree(paths.root, ignore_errors=True)
        return f"round {number + 1}, shard {shard}: {job.inner_steps} steps in {facts.seconds:.2f} s"

    def _kept(self, paths: Paths, number: int, shard: int, own: Job, start: float) -> ShardDone:
        """Moves the checkpoint of a run to where others read it, and returns what is to be written down."""
        made, losses = checkpoints.folder_of(paths.checkpoints, own.steps), losses_of(paths)
        name = f"r{number:06d}-s{shard:05d}-{checksum(made)}"
        with suppress(OSError):  # another island has made the same
            made.rename(self.folder.results / name)
        seconds = time.perf_counter() - start
        told = [losses[step] for step in sorted(losses)]
        return ShardDone(result=name, losses=told, seconds=seconds, host=socket.gethostname())

    def _state(self, number: int, shard: int, job: IslandsJob) -> Checkpoint:
        """Returns the checkpoint whose optimizer state a shard goes on with at a version."""
        if number == 0:
            return Checkpoint.open(self.folder.version(0, job))
        found = self.result(number - 1, shard)
        if found is None:
            self.say(f"shard {shard}: its state at version {number} is spoiled, and is made again")
            self.train(number - 1, shard, job)
            found = self.result(number - 1, shard)
        if found is None:
            raise BadInput(f"the state of shard {shard} is lost", where=str(self.folder.root))
        return found

    def _prepared(self, paths: Paths, number: int, shard: int, job: IslandsJob) -> Job:
        """Writes what the ranks of a shard's steps read: their job, and the checkpoint that they go on from."""
        state, version = self._state(number, shard, job), Checkpoint.open(self.folder.version(number, job))
        paths.make()
        tensors, rows = version.parameters(version.held), state.state(version.held)
        part = CheckpointPart(rank=0, tensors=tensors, state=rows, settings=state.settings)
        facts = replace(version.facts, extra=state.facts.extra)
        checkpoints.write_alone(paths.checkpoints, part, facts, version.names)
        own = replace(self.job, steps=(number + 1) * job.inner_steps, shards=job.shards, shard=shard)
        own.write(paths)
        if own.device == "cuda":
            write_whole(paths.plan, plans.dump(self.model.plan))
        return own

    def _run(self, paths: Paths, job: Job, beating: AbstractContextManager[None]) -> Outcome:
        """Runs the ranks until all are done. They are forked before this process has a thread."""
        train = partial(train_rank, paths, job, self.model)
        main = partial(afresh, paths) if job.device == "cuda" else train
        pids = fork_ranks(paths, len(self.model.plan.places), main)

        def told() -> tuple[str, str] | None:
            return CANCELLED if self.folder.paths.cancelled.exists() else None

        watch = RankWatch(paths, pids, job.deadline_s, told)
        with beating:
            return watch.until_the_end()
