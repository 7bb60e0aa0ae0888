"""The process that holds a run folder: the supervisor of a local run, or a launch that is under way.

Host, number and start time identify a process. A later process with the same number, or one on another host
that sees the folder, is not mistaken for it. A process is ended only where its command line says that it
supervises this very folder, since anybody may have written the folder's files.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from planner.errors import BadInput
from planner.files import find_record
from runtime.runfolder.durable import write_durably, write_whole
from runtime.runfolder.paths import Paths

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


def _stat(pid: int) -> list[str]:
    """Returns what the kernel says of a process, beginning with its state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
