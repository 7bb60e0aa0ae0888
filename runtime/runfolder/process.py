"""The process that holds a local run, found again by the folder: by its number and its start, which no later process
with that number shares, and by its host, since a folder may be seen from several.
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
    host: str
    pid: int
    started: str  # in ticks of the kernel, with the name of its boot

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        return self.here and _start_of(self.pid) == self.started

    def end(self, number: signal.Signals) -> None:
        """With all that it has started in a group of its own."""
        with suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def of(pid: int) -> RunProcess:
    return RunProcess(socket.gethostname(), pid, _start_of(pid))


def note_process(paths: Paths, pid: int) -> None:
    write_whole(paths.holder, json.dumps(asdict(of(pid))))


def find(paths: Paths) -> RunProcess | None:
    """None where no process of one's own was started for the run."""
    try:
        return RunProcess(**json.loads(paths.holder.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def cancel(paths: Paths, number: signal.Signals) -> None:
    held = find(paths)
    if held is not None and not held.here:
        raise BadInput(f"was started on {held.host}", where=str(paths.root), allowed="cancel it there")
    if held is None or not held.alive:
        raise BadInput("does not run", where=str(paths.root))
    paths.cancelled.touch()
    held.end(number)


def _start_of(pid: int) -> str:
    """Empty where it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "" if state == "Z" else f"{rest[18]} {boot}"
