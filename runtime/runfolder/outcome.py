"""The words of a run's processes about how it goes and ends: heartbeats, causes, attempts and the outcome."""

from __future__ import annotations

import json
import mmap
import re
import shutil
import struct
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput, Interrupted
from planner.files import absolute, find_record, read_lines
from runtime.runfolder.durable import FULL, append_durably, write_durably
from runtime.runfolder.holder import is_stopped
from runtime.runfolder.paths import Paths

MOST_STACK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the ranks; `state` is empty for one whose end nobody saw."""

    generation: int
    job: str = ""  # of SLURM
    requeues: int = 0  # of the job before it
    nodes: list[str]
    begin_s: float
    checkpoint: int = -1  # the step that it began after
    end_s: float = 0.0
    state: str = ""
    cause: str = ""
    rank: int | None = None


def attempts(paths: Paths) -> list[Attempt]:
    """Returns the attempts of a run in order.

    An attempt has two lines in the file, from its start and its end. The later line counts.
    Args: `paths` is a run folder; without the file there are no attempts.
    Raises: BadInput where a whole line of the file is no attempt.
    """
    rows = read_lines(Attempt, paths.attempts) if paths.attempts.exists() else []
    found = {attempt.generation: attempt for attempt in rows}
    return [found[generation] for generation in sorted(found)]


def in_vain(tries: Sequence[Attempt], newest: int) -> list[Attempt]:
    """Returns the last attempts that have left no new checkpoint.

    Args: `tries` are in order; `newest` is the step of the newest checkpoint.
    """
    found: list[Attempt] = []
    for attempt in reversed(tries):
        if attempt.checkpoint != newest:
            break
        found.insert(0, attempt)
    return found


def note_attempt(paths: Paths, attempt: Attempt) -> None:
    """Appends the line of an attempt to the run folder: once at its start, and once at its end."""
    append_durably(paths, paths.attempts, json.dumps(asdict(attempt)))


def open_run(folder: Path) -> Paths:
    """Returns the files of an existing run.

    Args: `folder` may be relative.
    Raises: BadInput where `folder` is no run folder.
    """
    paths = Paths(absolute(folder))
    if not paths.job.exists():
        raise BadInput("is no run folder", where=str(folder), allowed="a folder that launch made")
    return paths


def outcome_of(paths: Paths) -> Outcome | None:
    """Returns how a run ended, None while it goes on or where it wrote nothing.

    Raises: BadInput where the file is no outcome.
    """
    return find_record(Outcome, paths.outcome)


BEAT = struct.Struct("<qq")  # how many calls were begun; whether the last one waits for another rank

STOPPED = 85  # exit status of a rank that was told to stop and left a checkpoint


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its state, the rank to blame, and the cause."""

    state: str  # done | failed | hung | interrupted | ended
    rank: int | None = None  # where it began
    cause: str = ""
    exits: tuple[int, ...] = ()  # exit status of every rank; the negative of the signal that killed it

    @property
    def status(self) -> int:
        """Returns the exit status of a launch that waits.

        That is 0 for `done`, else the status of the rank to blame, or 1 where it has none of its own.
        """
        if self.state == "done":
            return 0
        if self.state == "stopped":
            return STOPPED
        if self.state == "interrupted":
            return Interrupted.status
        if self.state == "hung" or self.rank is None or not 0 <= self.rank < len(self.exits):
            return 1
        status = self.exits[self.rank]
        return 128 - status if status < 0 else status or 1


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The words that a rank writes before it ends in an exception. A `secondary` cause follows from another
    rank's end.
    """

    rank: int
    time_ns: int
    secondary: bool
    what: str
    where: list[str]


class Heartbeat:
    """One rank's entry in the shared file of heartbeats. A beat is two stores, far below a microsecond."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), BEAT.size * ranks)
        self._view = memoryview(self._map).cast("q")
        self._at, self._count = 2 * rank, 0

    def beat(self, waiting: bool) -> None:
        """Counts one more call of this rank.

        Args: `waiting` says whether the call waits for another rank.
        """
        self._count += 1
        self._view[self._at], self._view[self._at + 1] = self._count, waiting


def read_cause(path: Path) -> Cause | None:
    """Returns the cause in a file, None where there is no such file or it is not readable."""
    try:
        return find_record(Cause, path)
    except BadInput:
        return None


def write_cause(paths: Paths, rank: int, error: BaseException) -> None:
    """Writes the exception that ends a rank as its cause, with the traceback.

    Args: `error` is the exception; lost connections count as secondary.
    """
    full = _full(paths, error) if isinstance(error, OSError) and error.errno in FULL else ""
    cause = Cause(
        rank=rank,
        time_ns=time.monotonic_ns(),
        secondary=is_secondary(error),
        what=f"rank {rank}: {type(error).__name__}: {error}{full}",
        where=traceback.format_exception(error),
    )
    write_durably(paths, paths.cause(rank), json.dumps(asdict(cause)))


def _full(paths: Paths, error: OSError) -> str:
    """Returns what is known of a disk that is full, and what to do."""
    where = Path(error.filename) if error.filename else paths.root
    there = next((path for path in (where, *where.parents) if path.exists()), paths.root)
    return (
        f"; {shutil.disk_usage(there).free} bytes are free in {there}: make room, or keep fewer checkpoints (--keep), and "
        "launch again in this folder, where the run goes on from its last checkpoint"
    )


def is_secondary(error: BaseException) -> bool:
    """Returns whether an error follows from another rank's end: a lost connection or a timeout of a
    communication call.
    """
    words = (  # which one it is depends on who is faster
        *("Connection closed by peer", "Connection reset", "Timed out waiting", "Broken pipe", "NCCL"),
        *("/gloo/transport/", "Socket Timeout", "Socket closed"),
    )
    told = getattr(error, "secondary", False) is True  # by the rank that failed
    return told or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))


def removed(paths: Paths) -> Outcome | None:
    """Returns the outcome of a run whose folder somebody has removed or replaced by a link, None where it is there."""
    if paths.root.is_symlink():
        return Outcome("failed", cause=f"somebody has replaced {paths.root} by a link, which is not followed")
    if paths.job.exists():
        return None
    return Outcome("failed", cause=f"somebody has removed {paths.root}: nothing is left to go on from")


def tell(paths: Paths, outcome: Outcome) -> None:
    """Writes the outcome of a run, for everyone who looks at it. Nothing is started again afterwards.

    Args: `outcome` replaces an earlier one.
    """
    write_durably(paths, paths.outcome, json.dumps(asdict(outcome)))


def log_end(log: Path) -> int:
    """Returns the size of a log, 0 where there is none."""
    return log.stat().st_size if log.exists() else 0


def stands_at(log: Path, since: int, pid: int) -> str:
    """Returns the innermost line of Python that a rank has written as its place; empty where it wrote none.

    Args: `since` is the size that the log had before the rank was asked; `pid` is its process.
    """
    if is_stopped(pid):
        return ", stopped by a signal"
    with suppress(OSError), log.open("rb") as file:
        file.seek(since)
        text = file.read(MOST_STACK_BYTES).decode(errors="replace")
        main = text.rpartition("Current thread")[2].partition("\n")[2].partition("\n\n")[0]
        found = re.search(r'File "([^"]+)", line (\d+) in (\S+)', main)
        return f", at {found[1]}:{found[2]} in {found[3]}" if found else ""
    return ""
