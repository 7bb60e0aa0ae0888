"""A SLURM job as the backend of a run: it is queued, asked for its state, waited for and cancelled."""

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
from runtime.slurm.state import JobState, Queued

LOOK_S = 0.2  # at files of the run folder
ASK_S = (5.0, 30.0)  # how often SLURM is asked: at first, and when a run is old
OLD_S = 120.0


@dataclass(frozen=True)
class SlurmBackend:
    """A run whose job was queued, or which runs inside of an allocation."""

    paths: Paths
    job: int

    def state(self) -> tuple[str, str]:
        """Returns the state of a run that has no outcome yet, and the reason for that state.

        Inside of an allocation, a supervisor of this machine holds the run, as it does a local one.
        """
        found = self._job_state()
        return found.state, found.reason

    def _job_state(self) -> JobState:
        queued = Queued.read(self.paths)
        if queued is not None and queued.inside:
            return JobState(*LocalBackend(self.paths).state())
        return state.of(self.job)

    def wait(self, timeout_s: float | None = None, look: Callable[[], None] | None = None) -> Outcome:
        """Waits for the outcome in the run folder, and asks SLURM now and then whether there will be one.

        Args: `look` is called as often as SLURM is asked.
        Returns: the outcome; one that names SLURM's reason where the job ended without any, or can never
          start.
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
                if (gone := runfolder.removed(self.paths)) is not None:
                    return gone
                if look is not None:
                    look()
                if (ended := self._given_up()) is not None:
                    return ended
            time.sleep(LOOK_S)

    def _given_up(self) -> Outcome | None:
        """Returns the outcome of a job that has ended without writing one, or that will never start; else
        None.
        """
        found = self._job_state()
        if found.stuck:
            return Outcome("failed", cause=f"{found.reason}; job {self.job} is still queued")
        if found.state not in ("queued", "running"):
            return runfolder.outcome_of(self.paths) or Outcome(found.state, cause=found.reason)
        return None

    def cancel(self) -> None:
        """Cancels the job of the run.

        Raises: BadInput where the job neither waits nor runs.
        """
        submit.cancel(self.paths)


def backend_of(paths: Paths) -> SlurmBackend | None:
    """Returns the backend of a run.

    Args: `paths` is the run folder.
    Returns: None for a run that was never queued.
    """
    queued = Queued.read(paths)
    return None if queued is None else SlurmBackend(paths, queued.job)


def queue(paths: Paths) -> SlurmBackend:
    """Queues the job of a prepared run folder.

    Args: `paths` is as `prepared` has left it.
    Raises: SlurmError where SLURM refuses the script.
    """
    return SlurmBackend(paths, submit.submit(paths).job)


def test_only(request: JobRequest, options: Options) -> str:
    """Asks sbatch about the script of a job, and queues nothing.

    Args: `request` and `options` are those that the script is made from.
    Returns: when the job could start, in SLURM's words.
    Raises: Infeasible where no partition could ever run it; SlurmError where SLURM refuses the script.
    """
    wanted = limits.effective(options, os.environ)
    limits.check(limits.known(), request.layout, request.threads, request.cuda, wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.sbatch"
        path.write_text(text(request, options))
        return commands.submit(path, test=True)
