"""The lock of a run folder: one SLURM job at a time trains in it, whoever submitted the jobs.

A lock is a numbered file. It is over when its file is gone or its job has ended. The next job then takes the
next number, and only one of several jobs succeeds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput
from planner.files import find_record
from runtime import runfolder
from runtime.runfolder import Paths, RunProcess
from runtime.slurm import state

ENDING_S = 60.0  # for a job that SLURM is about to end
LOOK_S = 0.5


class FolderBusy(BadInput):
    """Another job trains in the folder."""

    def __init__(self, job: str, paths: Paths) -> None:
        super().__init__(
            f"job {job} trains in this folder", where=str(paths.root), allowed="one job at a time"
        )
        self.job = job


@dataclass(frozen=True, kw_only=True)
class FolderLock:
    """The job that holds the lock of a run folder, and its supervisor process."""

    job: str  # as SLURM names it: 12, or 12_3 for a task of an array
    holder: RunProcess  # its supervisor

    @classmethod
    def read(cls, path: Path) -> FolderLock | None:
        """Returns the lock in a file, None where it was released meanwhile.

        Args: `path` is a file of the folder of locks.
        """
        return find_record(cls, path)

    def over(self, job: str) -> bool:
        """Returns whether the lock's job has ended. It waits up to a minute for a job that SLURM is ending.

        Args: `job` is the job that asks; its own lock is over where it was queued again.
        """
        if self.holder.alive:
            return False
        end = time.monotonic() + ENDING_S
        while self.job != job and (word := state.word(self.job)) not in state.OVER:
            if word not in ("COMPLETING", state.UNKNOWN) or time.monotonic() > end:
                return False
            time.sleep(LOOK_S)
        return True


@contextmanager
def taken(paths: Paths, job: str) -> Iterator[Callable[[], bool]]:
    """Holds the lock of a run folder while the context lasts.

    SLURM may start a job again while its first node cannot be reached, and a supervisor there goes on. It loses the lock.
    Args: `job` is this job, as SLURM names it.
    Yields: a function that says whether the lock is still held.
    Raises: FolderBusy where another job holds the lock.
    """

    busy = ""

    def over(last: Path) -> bool | None:
        nonlocal busy
        turn = FolderLock.read(last)
        busy = turn.job if turn is not None else ""
        return None if turn is None else turn.over(job)

    paths.turns.mkdir(exist_ok=True)
    mine = FolderLock(job=job, holder=runfolder.of(os.getpid()))
    path = runfolder.take_number(paths.turns, json.dumps(asdict(mine)), over)
    if path is None:
        raise FolderBusy(busy, paths)
    for old in paths.turns.iterdir():
        if old.name.isdecimal() and int(old.name) < int(path.name):
            old.unlink(missing_ok=True)

    def is_held() -> bool:
        return FolderLock.read(path) == mine

    try:
        yield is_held
    finally:
        if is_held():
            path.unlink(missing_ok=True)


def refuse(paths: Paths) -> None:
    """Refuses a run folder in which a job trains, or whose job waits.

    Raises: BadInput where one does.
    """
    queued = state.Queued.read(paths)
    if queued is not None and not queued.inside and state.word(queued.job) in (*state.QUEUED, *state.RUNNING):
        raise BadInput(
            f"job {queued.job} of this run is queued or running",
            where=str(paths.root),
            allowed="cancel it, or another folder",
        )
    last = runfolder.last_number(paths.turns)
    turn = FolderLock.read(runfolder.numbered(paths.turns, last)) if last else None
    if turn is not None and not turn.over(""):
        raise FolderBusy(turn.job, paths)
