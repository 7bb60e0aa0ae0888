"""The supervisor process of a local run, found again by the run folder.

Host, process number and start time identify it. A later process with the same number, or one on another host
that sees the folder, is not mistaken for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput
from runtime.runfolder.durable import write_whole
from runtime.runfolder.paths import Paths


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
        return self.here and _start_of(self.pid) == self.started

    def end(self, number: signal.Signals) -> None:
        """Sends a signal to the process, and to its group where it leads one.

        Args: a process that has ended already is no error.
        """
        with suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def of(pid: int) -> RunProcess:
    """Returns the identity of a process of this host.

    Args: `pid` is the number of the process.
    """
    return RunProcess(socket.gethostname(), pid, _start_of(pid))


def note_process(paths: Paths, pid: int) -> None:
    """Writes down which process supervises a run.

    Args: `pid` is a process of this host.
    """
    write_whole(paths.holder, json.dumps(asdict(of(pid))))


def find(paths: Paths) -> RunProcess | None:
    """Returns the supervisor process of a run, None where none was started for it."""
    try:
        return RunProcess(**json.loads(paths.holder.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def cancel(paths: Paths, number: signal.Signals) -> None:
    """Marks a run as cancelled and ends its supervisor.

    Args: `number` is the signal that is sent.
    Raises: BadInput where the run was started on another host, or does not run.
    """
    held = find(paths)
    if held is not None and not held.here:
        raise BadInput(f"was started on {held.host}", where=str(paths.root), allowed="cancel it there")
    if held is None or not held.alive:
        raise BadInput("does not run", where=str(paths.root))
    paths.cancelled.touch()
    held.end(number)


def _start_of(pid: int) -> str:
    """Returns the start of a process in ticks of the kernel, with the boot; empty where the process has
    ended.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if state == "Z" else f"{rest[18]} {boot}"
