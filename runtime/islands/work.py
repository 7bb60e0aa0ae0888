"""Has any number of islands train the shards of a round, add them up, and go on with the next.

`python -P -m runtime.islands.work FOLDER` is one island. It may be started anywhere that sees the folder, at any time,
and be ended at any time: what it held is taken by others, and the weights are the same to the bit.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from planner import plan as plans
from planner.errors import BadInput, ShardwrightError
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.checkpoint import Checkpoint
from runtime.islands.folder import (
    KEPT_ROUNDS,
    IslandsFolder,
    IslandsJob,
    IslandsStatus,
    checksum,
    islands_status,
    shard_of_name,
)
from runtime.islands.outer import added_up
from runtime.islands.shards import Shards, discard, who
from runtime.leases import Lease
from runtime.local import NO_GPUS
from runtime.train import Model

Say = Callable[[str], None]


class Island:
    """One island: it holds the plan and the captured model, and takes what there is to do."""

    def __init__(self, folder: IslandsFolder, say: Say, model: Model | None = None) -> None:
        """Opens a folder.

        Args: `say` is told of everything that is done; `model` is the plan's where the caller has it.
        """
        torch.set_num_threads(1)  # a process that has run threads cannot be forked
        self._folder, self._say = folder, say
        self._model = model or Model.of(plans.load(folder.paths.plan))
        self._shards = Shards(folder, runfolder.read(folder.paths), self._model, say)

    def work(self) -> IslandsStatus:
        """Takes shards and sums until the last version is there, or nothing is left that can be had.

        Returns: the state at the end.
        """
        while not self._cancelled():
            number, job = self._newest(), self._folder.read()
            if number >= job.rounds or not self._round(number, job):
                break
        return islands_status(self._folder)

    def _cancelled(self) -> bool:
        return self._folder.paths.cancelled.exists()

    def _round(self, number: int, job: IslandsJob) -> bool:
        """Does what is left of a round. Returns whether there is more to do."""
        tasks = self._folder.tasks(number, job)
        for lease in tasks.work():
            shard = shard_of_name(lease.name)
            self._attempt(lease, lambda: self._shards.train(number, shard, job, lease.beating()))  # noqa: B023
            if self._cancelled() or max(self._folder.versions(job)) > number:
                return True
        if tasks.aside():
            return False
        sums = self._folder.sums(number)
        for lease in sums.work():
            with lease:
                self._attempt(lease, lambda: self._add_up(number, job, lease))  # noqa: B023
            break  # what is missing now is a shard's, or has failed
        return not sums.aside()

    def _attempt(self, lease: Lease, do: Callable[[], str]) -> None:
        """Does a task, and writes down where that fails."""
        try:
            self._say(do())
        except (ShardwrightError, OSError, RuntimeError, ValueError, MemoryError) as error:
            lease.failed(f"{type(error).__name__}: {error}")
            self._say(f"{lease.name}: failed: {error}")
        finally:
            lease.release()

    def _newest(self) -> int:
        """Returns the number of the newest version that is what was written; others are made again.

        Raises: BadInput where none is.
        """
        job = self._folder.read()
        for number in reversed(self._folder.versions(job)):
            path = self._folder.version(number, job)
            if not (what := checkpoints.flaw(path)):
                return number
            if path.exists():
                self._say(f"version {number} is spoiled ({what}) and is made again")
                self._folder.not_summed(number - 1)
                discard(path)
        raise BadInput("no sound version is left", where=str(self._folder.root))

    def _add_up(self, number: int, job: IslandsJob, lease: Lease) -> str:
        """Publishes the next version, or has the shards done again whose results are spoiled."""
        results = [self._shards.result(number, shard) for shard in range(job.shards)]
        whole = [each for each in results if each is not None]
        if len(whole) < job.shards:
            return f"round {number + 1}: {job.shards - len(whole)} results are spoiled and are made again"
        start = time.perf_counter()
        version = Checkpoint.open(self._folder.version(number, job))
        facts = replace(
            version.facts,
            step=version.facts.step + job.inner_steps,
            sample=version.facts.sample + job.inner_steps * self._model.plan.batch.samples,
        )
        part, folder = added_up(version, whole, job.outer), self._folder.paths.checkpoints
        made = checkpoints.write_alone(folder, part, facts, version.names, by=who())
        lease.done({"version": checksum(made.folder)})
        self._clean(number + 1, job)
        return f"version {number + 1}: {job.shards} shards added up in {time.perf_counter() - start:.2f} s"

    def _clean(self, newest: int, job: IslandsJob) -> None:
        """Removes versions and results that nobody goes on from, and what was left half done of older ones."""
        folder = self._folder
        for number in folder.versions(job):
            if number <= newest - KEPT_ROUNDS:
                with suppress(OSError):
                    checkpoints.remove(folder.version(number, job))
        for path in folder.paths.checkpoints.glob("*.partial"):
            step = path.name.removeprefix(checkpoints.PREFIX).split(".")[0]
            if step.isdecimal() and int(step) < newest * job.inner_steps:
                shutil.rmtree(path, ignore_errors=True)
        for path in (*folder.results.iterdir(), *folder.work.iterdir()):
            round_number = path.name[1:7]
            if round_number.isdecimal() and int(round_number) < newest - KEPT_ROUNDS:
                shutil.rmtree(path, ignore_errors=True)


def work_on(folder: IslandsFolder, say: Say, model: Model | None = None) -> IslandsStatus:
    """Works as one island until the last version is there, or nothing is left that can be had.

    Args: `say` is told of everything that is done; `model` is the plan's where the caller has it.
    Returns: the state at the end.
    """
    return Island(folder, say, model).work()


def start_islands(folder: IslandsFolder, count: int) -> list[subprocess.Popen[bytes]]:
    """Starts islands as processes of this machine, which go on when this one ends.

    Returns: the processes.
    """
    command = [sys.executable, "-P", "-m", "runtime.islands.work", str(folder.root)]
    hidden = os.environ | NO_GPUS if runfolder.read(folder.paths).device == "cpu" else None
    started = []
    for number in range(count):
        name = f"{socket.gethostname()}-{os.getpid()}-{number}.log"
        with (folder.logs / name).open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env=hidden,
            )
        started.append(process)
    return started


def main(name: str) -> int:
    """Works as one island, and prints a line for everything that is done.

    Returns: the exit status.
    """
    folder = IslandsFolder(Path(name).resolve())
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and what it holds is let go
    try:
        os.chdir(folder.read().directory)
        found = work_on(folder, lambda line: print(line, flush=True))
    except ShardwrightError as error:
        print(error, file=sys.stderr, flush=True)
        return error.status
    return 0 if found.state == "done" else 1


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
