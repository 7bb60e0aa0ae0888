"""Runs on this machine: every rank of a plan as a process, or the whole of it in this one.

    run = launch(plan, folder, steps=10)        # returns at once; ranks are processes of their own
    result = run.wait()                         # losses, the measured Timeline, how it ended
    result = launch_inline(plan, folder, steps=10)

A run folder that already holds checkpoints is resumed from the last complete one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.plan import Plan
from planner.workload import Workload
from runtime import launch as launching
from runtime import runfolder
from runtime.launch import Handle
from runtime.runfolder import Outcome, Paths, tell
from runtime.train import Model, job_of, prepare, prepare_folder

FIRST_WORD_S, RARELY_S = 2.0, 60.0  # of how a run stands, while somebody waits for it
WORD_S = 5.0  # for a supervisor that is told to end


@dataclass(frozen=True, repr=False)
class LocalRun(Handle):
    """A run in processes of its own."""

    process: subprocess.Popen[bytes]

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[launching.Status], None] | None = None
    ) -> Outcome:
        """With `tell`, how it stands now and then, ever more rarely."""
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        pause_s = float("inf") if tell is None else FIRST_WORD_S
        while not self._ended(min(pause_s, end_s - time.monotonic())):
            if time.monotonic() >= end_s:
                raise TimeoutError(f"{self.folder} has not ended after {timeout_s:g} s")
            assert tell is not None
            tell(launching.of(self.folder))
            pause_s = min(1.5 * pause_s, RARELY_S)
        if self.paths.cancelled.exists():
            return Outcome("cancelled")
        if (found := runfolder.outcome_of(self.paths)) is not None:
            return found
        return Outcome("failed", cause=f"the supervisor ended with status {self.process.returncode}")

    def _ended(self, within_s: float) -> bool:
        try:
            self.process.wait(None if within_s == float("inf") else max(within_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self) -> None:
        """As Ctrl-C ends it: with a word, for whoever asks later."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(WORD_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if runfolder.outcome_of(self.paths) is None:
            tell(self.paths, Outcome("interrupted", cause="by Ctrl-C"))

    def cancel(self) -> None:
        if self.process.poll() is None:
            super().cancel()
            self.process.wait()


def launch(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    detach: bool = False,
    **settings: object,
) -> LocalRun:
    """`settings` are fields of Job. Its checks are made, and checkpoint 0 is written, before anything starts.

    The run ends with the process that launches it, unless it is detached.
    """
    job = job_of(plan, steps, settings)
    if job.content == "sleep":
        paths, _ = prepare_folder(plan, Path(folder), job)
    else:
        paths, _ = prepare(Model.of(plan, workload), Path(folder), job)
    return start(paths, len(plan.places), detach)


def start(paths: Paths, ranks: int, detach: bool = False) -> LocalRun:
    parent = 0 if detach else os.getpid()
    command = [sys.executable, "-P", "-m", "runtime.local.main", str(paths.root), str(parent)]
    with (paths.root / "logs" / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    runfolder.note_process(paths, process.pid)
    return LocalRun(paths, ranks, process)
