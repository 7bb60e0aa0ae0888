"""A run under SLURM as a value to hold: returns at once, can be asked, waited for and cancelled."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime import runfolder
from runtime.local import LocalBackend
from runtime.runfolder import Outcome, Paths
from runtime.slurm import commands, limits, state, submit
from runtime.slurm.options import Options
from runtime.slurm.script import JobRequest, text
from runtime.slurm.state import Queued

LOOK_S = 0.2  # at files of the run folder
ASK_S = (5.0, 30.0)  # how often SLURM is asked: at first, and when a run is old
OLD_S = 120.0


@dataclass(frozen=True)
class SlurmBackend:
    """A run that SLURM holds, or will start."""

    paths: Paths
    job: int

    def state(self) -> tuple[str, str]:
        """Returns the state of a run without an outcome, and the reason for it.

        Inside of an allocation a run is held by a supervisor of this machine, as a local one is.
        """
        found = self._job_state()
        return found.state, found.reason

    def _job_state(self) -> state.JobState:
        queued = Queued.read(self.paths)
        if queued is not None and queued.inside:
            return state.JobState(*LocalBackend(self.paths).state())
        return state.of(self.job)

    def wait(self, timeout_s: float | None = None, look: Callable[[], None] | None = None) -> Outcome:
        """Waits for the outcome in the run folder, and asks SLURM now and then whether there will be one.

        Raises: TimeoutError after `timeout_s`.
        """
        begin = asked = time.monotonic()
        while True:
            if (found := runfolder.outcome_of(self.paths)) is not None:
                return found
            now = time.monotonic()
            if timeout_s is not None and now - begin > timeout_s:
                raise TimeoutError(f"{self.paths.root} has not ended after {timeout_s:g} s")
            if now - asked > ASK_S[now - begin > OLD_S]:
                asked = now
                if look is not None:
                    look()
                if (ended := self._given_up()) is not None:
                    return ended
            time.sleep(LOOK_S)

    def _given_up(self) -> Outcome | None:
        found = self._job_state()
        if found.stuck:
            return Outcome("failed", cause=f"{found.reason}; job {self.job} is still queued")
        if found.state not in ("queued", "running"):
            return runfolder.outcome_of(self.paths) or Outcome(found.state, cause=found.reason)
        return None

    def cancel(self) -> None:
        """Cancels the job of the run."""
        submit.cancel(self.paths)


def backend_of(paths: Paths) -> SlurmBackend | None:
    """Returns the backend of a run that was queued, None for a run that never was."""
    queued = Queued.read(paths)
    return None if queued is None else SlurmBackend(paths, queued.job)


def queue(paths: Paths) -> SlurmBackend:
    """Queues the job of a prepared run folder."""
    return SlurmBackend(paths, submit.submit(paths).job)


def test_only(request: JobRequest, options: Options) -> str:
    """What sbatch says to the script of a job that is not queued: when it could start, or why never."""
    wanted = limits.effective(options, os.environ)
    limits.check(limits.known(), request.layout, request.threads, request.cuda, wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.sbatch"
        path.write_text(text(request, options))
        return commands.submit(path, test=True)
