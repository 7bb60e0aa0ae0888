"""The lock of a run folder: one SLURM job at a time trains in it, whoever submitted the jobs.

A lock is a numbered file that appears whole, and only where no file has its number. File systems that promise
no locks promise that. A lock is over when its file is gone or its job has ended. The next job then takes the
next number, and only one of several jobs succeeds.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput
from runtime import runfolder
from runtime.runfolder import Paths, RunProcess, write_durably
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
        try:
            found = json.loads(path.read_text())
            return cls(job=found["job"], holder=RunProcess(**found["holder"]))
        except FileNotFoundError:  # it was over meanwhile
            return None

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
def taken(paths: Paths, job: str) -> Iterator[None]:
    """Holds the lock of a run folder while the context lasts.

    Args: `job` is this job, as SLURM names it.
    Raises: FolderBusy where another job holds the lock.
    """
    paths.turns.mkdir(exist_ok=True)
    mine = paths.turns / f"new-{job}-{socket.gethostname()}-{os.getpid()}"
    write_durably(paths, mine, json.dumps(asdict(FolderLock(job=job, holder=runfolder.of(os.getpid())))))
    try:
        path = _next(paths, job, mine)
    finally:
        mine.unlink()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def refuse(paths: Paths) -> None:
    """Refuses a run folder in which a job trains.

    Raises: FolderBusy where one does.
    """
    last = _last(paths)
    turn = FolderLock.read(_file(paths, last)) if last else None
    if turn is not None and not turn.over(""):
        raise FolderBusy(turn.job, paths)


def _next(paths: Paths, job: str, mine: Path) -> Path:
    while True:
        last = _last(paths)
        if last:
            turn = FolderLock.read(_file(paths, last))
            if turn is None:
                continue
            if not turn.over(job):
                raise FolderBusy(turn.job, paths)
        path = _file(paths, last + 1)
        try:
            path.hardlink_to(mine)
        except FileExistsError:
            continue
        return path


def _last(paths: Paths) -> int:
    found = paths.turns.iterdir() if paths.turns.exists() else ()
    return max((int(path.name) for path in found if path.name.isdigit()), default=0)


def _file(paths: Paths, number: int) -> Path:
    return paths.turns / f"{number:05d}"
