"""A run under SLURM as a value to hold: returns at once, can be asked, waited for and cancelled."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.plan import Plan
from planner.workload import Workload
from runtime import launch as launching
from runtime import runfolder
from runtime.launch import Handle
from runtime.runfolder import Outcome, Paths
from runtime.slurm import commands, limits, submit
from runtime.slurm.elastic import Elastic
from runtime.slurm.options import Options
from runtime.slurm.script import Request, text
from runtime.slurm.state import JobState

LOOK_S = 0.2  # at files of the run folder
ASK_S = (5.0, 30.0)  # how often SLURM is asked: at first, and when a run is old
OLD_S = 120.0


@dataclass(frozen=True, repr=False)
class SlurmRun(Handle):
    job: int

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[launching.Status], None] | None = None
    ) -> Outcome:
        """`tell` is given the status now and then while the run goes on."""
        begin = asked = time.monotonic()
        while True:
            if (found := runfolder.outcome_of(self.paths)) is not None:
                return found
            now = time.monotonic()
            if timeout_s is not None and now - begin > timeout_s:
                raise TimeoutError(f"{self.paths.root} has not ended after {timeout_s:g} s")
            if now - asked > ASK_S[now - begin > OLD_S]:
                asked = now
                state = launching.of(self.paths.root)
                if tell is not None:
                    tell(state)
                if JobState(state.state, state.reason).stuck:
                    return Outcome("failed", cause=f"{state.reason}; job {self.job} is still queued")
                if state.state not in ("queued", "running"):
                    return runfolder.outcome_of(self.paths) or Outcome(state.state, cause=state.reason)
            time.sleep(LOOK_S)


def launch(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    name: str = "training",
    options: Options | None = None,
    workload: Workload | None = None,
    flexible: Elastic | None = None,
    **settings: object,
) -> SlurmRun:
    """`settings` are fields of Job. Whatever can be known to fail is raised before anything is queued."""
    from runtime.train import job_of

    chosen = options or Options()
    job = job_of(plan, steps, dict(settings))
    paths, _ = submit.prepared(plan, name, Path(folder), job, chosen, workload=workload, flexible=flexible)
    return queue(paths, len(plan.places))


def queue(paths: Paths, ranks: int) -> SlurmRun:
    queued = submit.submit(paths)
    return SlurmRun(paths, ranks, queued.job)


def test_only(request: Request, options: Options) -> str:
    """What sbatch says to the script of a job that is not queued: when it could start, or why never."""
    wanted = limits.effective(options, os.environ)
    limits.check(limits.known(), request.layout, request.threads, request.cuda, wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.sbatch"
        path.write_text(text(request, options))
        return commands.submit(path, test=True)
