"""The process that holds a run folder: the supervisor of a local run, or a launch that is under way.

Host, number and start time identify a process. A later process with the same number, or one on another host
that sees the folder, is not mistaken for it. A process is ended only where its command line says that it
supervises this very folder, since anybody may have written the folder's files.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from planner.errors import BadInput
from planner.files import find_record
from runtime.runfolder.durable import write_durably, write_whole
from runtime.runfolder.paths import Paths

PR_SET_PDEATHSIG = 1
LOOK_S = 0.2  # at whether a process is stopped
MOST_GAP_S = 5.0  # between two looks of a watch that can run
SUPERVISORS = ("runtime.local.main", "runtime.slurm.supervisor")  # modules, as command lines name them


@dataclass(frozen=True)
class RunProcess:
    """One process on one host, known by its start."""

    host: str
    pid: int
    started: str  # in ticks of the kernel, with the name of its boot

    @property
    def here(self) -> bool:
        """Returns whether the process was started on this host."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Returns whether the process still runs on this host."""
        return self.here and self.started != "" and _start_of(self.pid) == self.started

    def supervises(self, folder: Path) -> bool:
        """Returns whether the process runs here and its command line says that it supervises a run folder.

        Args: `folder` is the run folder.
        """
        if not self.alive:
            return False
        with suppress(OSError, ValueError):
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode().split("\0")
            told = [word for before, word in pairwise(words) if before in SUPERVISORS]
            if Path(words[0]).name == "bash" and Path(words[1]).name == Paths(folder).script.name:
                told.append(str(Path(words[1]).parent))
            return any(os.path.samefile(word, folder) for word in told)
        return False

    def end(self, number: signal.Signals) -> None:
        """Sends a signal to the process, and to its group where it leads one.

        Args: a process that has ended already is no error.
        """
        assert self.pid > 1
        with suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def of(pid: int) -> RunProcess:
    """Returns the identity of a process of this host.

    Args: `pid` is the number of the process, or of one of its threads.
    """
    return RunProcess(socket.gethostname(), pid, _start_of(pid))


def note_process(paths: Paths, pid: int) -> None:
    """Writes down which process holds a run folder.

    Args: `pid` is a process of this host.
    """
    write_whole(paths.holder, json.dumps(asdict(of(pid))))


def find(paths: Paths) -> RunProcess | None:
    """Returns the process that holds a run folder, None where none does.

    Raises: BadInput where the folder names no process.
    """
    return find_record(RunProcess, paths.holder)


def cancel(paths: Paths, number: signal.Signals) -> None:
    """Marks a run as cancelled and ends its supervisor.

    Args: `number` is the signal that is sent.
    Raises: BadInput where the run was started on another host, does not run, or is no supervisor's.
    """
    held = find(paths)
    if held is not None and not held.here:
        raise BadInput(f"was started on {held.host}", where=str(paths.root), allowed="cancel it there")
    if held is None or not held.alive:
        raise BadInput("does not run", where=str(paths.root))
    if not held.supervises(paths.root):
        raise BadInput(
            f"process {held.pid}, which {paths.holder.name} names, does not supervise this folder",
            where=str(paths.root),
            allowed="end that process where it was started",
        )
    paths.cancelled.touch()
    held.end(number)


def release(paths: Paths) -> None:
    """Lets go of a run folder, where this thread holds it."""
    held = find(paths)
    if held is not None and held.here and held.pid == threading.get_native_id():
        paths.holder.unlink(missing_ok=True)


def refuse_held(paths: Paths) -> None:
    """Refuses a folder that another process holds. Two runs in one folder would write over each other.

    Raises: BadInput where a run goes on or is launched there; of another host, where it left no outcome.
    """
    held = find(paths)
    if held is None or (held.here and (not held.alive or held.pid == threading.get_native_id())):
        return
    if held.here:
        raise BadInput(
            "a run in this folder is running", where=str(paths.root), allowed="cancel it, or another folder"
        )
    if not (paths.outcome.exists() or paths.cancelled.exists()):
        raise BadInput(
            f"a run in this folder was started on {held.host} and has left no outcome",
            where=str(paths.root),
            allowed=f"cancel it there; or remove {paths.holder} if that machine has gone down",
        )


def take_number(folder: Path, text: str, over: Callable[[Path], bool | None]) -> Path | None:
    """Takes the next number in a folder of locks.

    A lock is a numbered file that appears whole, and only where no file has its number. File systems that
    promise no locks promise that. Of several that come at once after one that is over, one gets the number.
    Args: `folder` is in a run folder; `text` says who takes it; `over` tells of the last lock whether its holder is gone,
      or None where the lock itself is.
    Returns: the lock, to be unlinked by its holder; None where the last lock is not over.
    """
    mine = folder / f"new-{socket.gethostname().replace('.', '-')}-{os.getpid()}-{threading.get_native_id()}"
    write_durably(Paths(folder.parent), mine, text)
    try:
        while True:
            last = last_number(folder)
            gone = over(numbered(folder, last)) if last else True
            if gone is None:
                continue
            if not gone:
                return None
            path = numbered(folder, last + 1)
            with suppress(FileExistsError):
                path.hardlink_to(mine)
                return path
    finally:
        mine.unlink(missing_ok=True)


def last_number(folder: Path) -> int:
    """Returns the highest number in a folder of locks, 0 without any."""
    found = folder.iterdir() if folder.exists() else ()
    return max((int(path.name) for path in found if path.name.isdecimal()), default=0)


def numbered(folder: Path, number: int) -> Path:
    """Returns the lock of a number in a folder of locks."""
    return folder / f"{number:05d}"


def _start_of(pid: int) -> str:
    """Returns the start of a process in ticks of the kernel, with the boot; empty where the process has
    ended.
    """
    if pid < 1:
        return ""
    try:
        state, *rest = _stat(pid)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return ""
    return "" if state == "Z" else f"{rest[18]} {boot}"


def is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped a process, which then cannot go on by itself.

    Args: `pid` is a process of this host; one that has ended is not stopped.
    """
    try:
        return _stat(pid)[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Makes the kernel signal this process when its parent ends.

    Args: `parent` is the process number that the parent has now; where it has ended already, this process
      exits.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


class WatchClock:
    """A clock that stands while its process does, such as a watch that SLURM suspends with the ranks it watches."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read, self._last_s, self._lost_s = read, read(), 0.0

    def now(self) -> float:
        """Returns seconds. A watch calls it all the time; what it could not is no time of those that it watches."""
        now = self._read()
        if now - self._last_s > MOST_GAP_S:
            self._lost_s += now - self._last_s
        self._last_s = now
        return now - self._lost_s


class StopWatch:
    """Tells for how long a process has been stopped, by looking at it now and then."""

    def __init__(self, pid: int) -> None:
        self._pid, self._look_s = pid, float("-inf")
        self._since_s: float | None = None

    def seconds(self, now: float) -> float:
        """Returns for how long the process has been seen stopped without a break, 0 where it is not stopped.

        Args: `now` is the time of one clock, always the same one.
        """
        if now >= self._look_s:
            self._look_s = now + LOOK_S
            before = now if self._since_s is None else self._since_s
            self._since_s = before if is_stopped(self._pid) else None
        return 0.0 if self._since_s is None else now - self._since_s


def _stat(pid: int) -> list[str]:
    """Returns what the kernel says of a process, beginning with its state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
