"""Shares named tasks among any number of processes through a folder alone: no server, no locks, no clocks.

    tasks = Tasks(folder, names)
    for lease in tasks.work():        # until nothing is left to take
        with lease:                   # others see that it is held
            checksum = do(lease.name)
            lease.done({"checksum": checksum})

A task is held by a numbered file that appears only where no file has its number. Its holder touches it. A holder is
gone when its process is gone from this host, or when its file has stayed as it was while the looker's own monotonic
clock went on. So no two clocks are compared, and none may jump. A task that is held twice, by one that was thought
gone, has to give the same bytes twice. That is the one thing asked of what is done.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from planner.files import find_record, read_record, write_whole
from runtime.runfolder import RunProcess, of, take_number

T = TypeVar("T")

BEAT_S = 2.0
PATIENCE_S = 90.0  # longer than file systems show an old time of a file
FAILURES = 3  # after which a task is set aside
TAKEOVERS = 25  # after which its task is held to end whoever takes it
IDLE_S = 0.2, 2.0  # between looks for something to take


@dataclass(frozen=True)
class Failure:
    """What a worker writes when a task has failed."""

    error: str


@dataclass(frozen=True, kw_only=True)
class TaskCounts:
    """The numbers of tasks of a folder, by their state."""

    total: int
    done: int
    held: int
    aside: int

    @property
    def left(self) -> int:
        """Returns the tasks that are neither done nor set aside."""
        return self.total - self.done - self.aside


class Tasks:
    """The tasks of a folder, by their names."""

    def __init__(self, folder: Path, names: Sequence[str], *, patience_s: float = PATIENCE_S) -> None:
        """Opens a folder of tasks, which is made where there is none.

        Args: `names` are those of all tasks, fit for files; `patience_s` is how long a holder elsewhere may be silent.
        """
        self.folder, self.names, self._patience_s = folder, tuple(names), patience_s
        self._seen: dict[Path, tuple[int, float]] = {}
        for inner in ("claims", "done", "failed"):
            (folder / inner).mkdir(parents=True, exist_ok=True)

    def work(self) -> Iterator[Lease]:
        """Yields tasks to do, until every task is done or set aside; waits for those that others hold."""
        first = hash((os.getpid(), time.monotonic_ns())) % max(1, len(self.names))
        pause, known = IDLE_S[0], self.finished()
        while True:
            taken = 0
            for name in (*self.names[first:], *self.names[:first]):
                if name not in known and (lease := self._take(name)) is not None:
                    taken += 1
                    yield lease
            known = self.finished() | self.aside()
            if len(known) >= len(self.names):
                return
            pause = IDLE_S[0] if taken else min(2 * pause, IDLE_S[1])
            time.sleep(pause)

    def finished(self) -> set[str]:
        """Returns the names of the tasks that are done."""
        return {path.stem for path in (self.folder / "done").glob("*.json")} & set(self.names)

    def aside(self) -> set[str]:
        """Returns the names of the tasks that have failed too often."""
        counts = Counter(path.stem.rpartition(".")[0] for path in (self.folder / "failed").glob("*.json"))
        return {name for name in self.names if counts[name] >= FAILURES} - self.finished()

    def failures(self) -> dict[str, str]:
        """Returns why each task that is set aside has failed the last time."""
        found = {}
        for name in sorted(self.aside()):
            last = max((self.folder / "failed").glob(f"{name}.*.json"))
            found[name] = read_record(Failure, last).error
        return found

    def results(self, kind: type[T]) -> dict[str, T]:
        """Returns what was written when each finished task was done, by name.

        Args: `kind` is a class with the facts of a task.
        Raises: BadInput for a file that does not hold them.
        """
        return {
            name: read_record(kind, self.folder / "done" / f"{name}.json") for name in sorted(self.finished())
        }

    def counts(self) -> TaskCounts:
        """Returns how far the tasks are."""
        done, aside = self.finished(), self.aside()
        folders = (self.folder / "claims").iterdir()
        held = {path.name for path in folders if any(x.name.isdecimal() for x in path.iterdir())}
        return TaskCounts(
            total=len(self.names), done=len(done), held=len(held - done - aside), aside=len(aside)
        )

    def finish(self, name: str, facts: Mapping[str, object]) -> None:
        """Writes that a task is done, without holding it: as it was once done before.

        Args: `facts` are kept with it, as JSON.
        Raises: OSError where that cannot be written.
        """
        _write_done(self.folder, name, facts)

    def _take(self, name: str) -> Lease | None:
        folder = self.folder / "claims" / name
        folder.mkdir(exist_ok=True)
        text = json.dumps(asdict(of(os.getpid())))
        path = take_number(folder, text, self._gone)
        if path is None:
            return None
        lease = Lease(self.folder, name, path)
        if (self.folder / "done" / f"{name}.json").exists():  # by one who let go of it in between
            path.unlink(missing_ok=True)
            return None
        if int(path.name) > TAKEOVERS:
            for _ in range(FAILURES):
                lease.failed(f"ended {TAKEOVERS} processes that had taken it")
            return None
        return lease

    def _gone(self, path: Path) -> bool | None:
        """Returns whether the holder of a claim is gone; None where the claim itself is."""
        try:
            holder, beat = find_record(RunProcess, path), path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        if holder is None:
            return None
        if holder.here:
            return not holder.alive
        before, since = self._seen.get(path, (0, 0.0))
        if before != beat:
            self._seen[path] = beat, time.monotonic()
            return False
        return time.monotonic() - since > self._patience_s


def _write_done(folder: Path, name: str, facts: Mapping[str, object]) -> None:
    write_whole(folder / "done" / f"{name}.json", json.dumps(facts))


@dataclass
class Lease:
    """One task that this process holds, while the `with` block lasts."""

    folder: Path
    name: str
    path: Path  # of the claim

    def __enter__(self) -> Lease:
        self._beating = self.beating()
        self._beating.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.__exit__(None, None, None)
        self.release()

    def release(self) -> None:
        """Lets go of the task."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Lets others see that the task is held, from a thread of this process; it stays held afterwards."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            try:
                os.utime(self.path)
            except OSError:  # taken over meanwhile, or the disk is away: what is done stays right
                continue

    def done(self, facts: Mapping[str, object]) -> None:
        """Writes that the task is done.

        Args: `facts` are kept with it, as JSON.
        Raises: OSError where that cannot be written; the task is then to be done again.
        """
        _write_done(self.folder, self.name, facts)

    def failed(self, error: str) -> None:
        """Writes that the task has failed once more.

        Args: `error` is shown to the user.
        """
        others = len(list((self.folder / "failed").glob(f"{self.name}.*.json")))
        write_whole(self.folder / "failed" / f"{self.name}.{others:03d}.json", json.dumps({"error": error}))
