"""A run as a value to hold, in a notebook say, wherever it runs: `launch` returns it at once.

run = launch(plan)
run.state, run.metrics(), run.logs(rank=0)
run.cancel()
run.wait().check().losses
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner.errors import BadInput
from planner.plan import Plan
from planner.shown import Shown
from planner.simulate import RunRecord
from runtime import local, slurm
from runtime.backend import Backend
from runtime.launch import finished as records
from runtime.launch import status
from runtime.runfolder import Outcome, Paths, steps_of, unused

if TYPE_CHECKING:
    from planner.workload import Workload
    from runtime.runfolder import Result

Where = Literal["local", "slurm"]
HEADS = ("step", "loss", "seconds")


class StepRows(Shown, list[dict[str, float]]):
    """One row a step; a list of dictionaries, as pandas.DataFrame takes it, that shows itself as a table."""

    def heads(self) -> tuple[str, ...]:
        return HEADS

    def lines(self) -> list[list[str]]:
        return [[f"{row[head]:.6g}" for head in HEADS] for row in self]


@dataclass(frozen=True, repr=False)
class Handle(Shown):
    paths: Paths
    ranks: int
    backend: Backend

    @property
    def folder(self) -> Path:
        return self.paths.root

    @property
    def state(self) -> str:
        """queued, running, done, stopped, failed, hung, lost, cancelled, interrupted, ended, or as SLURM says."""
        return status.of(self.folder).state

    @property
    def job(self) -> int | None:
        """The number of the SLURM job, None for a run of this machine."""
        return self.backend.job if isinstance(self.backend, slurm.SlurmBackend) else None

    def logs(self, rank: int | None = None) -> str:
        """Of one rank, or of all and of what holds them."""
        return "\n".join(line for _, line in status.lines_of(self.folder, rank, follow=False))

    def metrics(self) -> StepRows:
        found = steps_of(self.paths)
        return StepRows(
            {"step": step, "loss": row.loss, "seconds": row.seconds} for step, row in found.items()
        )

    def cancel(self) -> None:
        """It can be resumed from its last complete checkpoint."""
        self.backend.cancel()

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[status.Status], None] | None = None
    ) -> Outcome:
        """How the run ended; `tell` is given its status now and then until then."""
        look = None if tell is None else lambda: tell(status.of(self.folder))
        return self.backend.wait(timeout_s, look)

    def wait(self, timeout_s: float | None = None) -> Result:
        """Until the run has ended, through all its restarts; TimeoutError where that takes longer."""
        from runtime.runfolder import result_of

        return result_of(self.paths, self.ranks, self.outcome(timeout_s))

    def record(self) -> RunRecord:
        """What it has left so far, beside its plan; the ranks' traces are there once it has ended."""
        return records.record(self.folder)

    def __repr__(self) -> str:
        return status.status_text(status.of(self.folder))


def launch(
    plan: Plan,
    folder: Path | str | None = None,
    *,
    steps: int = 10,
    on: Where | None = None,
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> Handle:
    """As a job where SLURM answers, in processes of this machine otherwise, unless `on` says. `options` are those of a
    site file for SLURM, `settings` fields of Job."""
    name = Path(plan.model.workload).stem or "training"
    where = Path(folder) if folder is not None else unused(name)
    chosen = on or ("slurm" if options or has_slurm() else "local")
    if chosen == "slurm":
        wanted = slurm.over(slurm.load(), options or {})
        return launch_slurm(plan, where, steps=steps, name=name, options=wanted, **settings)  # type: ignore[arg-type]
    if chosen != "local" or options:
        raise BadInput(f"on={chosen!r}", where="launch", allowed="'local', or 'slurm', which options are for")
    return launch_local(plan, where, steps=steps, **settings)  # type: ignore[arg-type]


def launch_local(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    detach: bool = False,
    **settings: object,
) -> Handle:
    """Runs every rank as a process of this machine; returns at once."""
    backend = local.start(
        plan, folder, steps=steps, workload=workload, detach=detach, refuse=slurm.refuse, **settings
    )
    return Handle(backend.paths, len(plan.places), backend)


def launch_slurm(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    name: str = "training",
    options: slurm.Options | None = None,
    workload: Workload | None = None,
    flexible: slurm.Elastic | None = None,
    **settings: object,
) -> Handle:
    """Queues a run as a job. Whatever can be known to fail is raised before anything is queued."""
    from runtime.train import job_of

    chosen = options or slurm.Options()
    job = job_of(plan, steps, dict(settings))
    paths, _ = slurm.prepared(plan, name, Path(folder), job, chosen, workload=workload, flexible=flexible)
    return Handle(paths, len(plan.places), slurm.queue(paths))


def launch_inline(
    plan: Plan, folder: Path | str, *, steps: int, workload: Workload | None = None, **settings: object
) -> Result:
    """Trains the whole plan in this process, and returns when it is done."""
    from runtime.train import train_inline

    return train_inline(plan, folder, steps=steps, workload=workload, refuse=slurm.refuse, **settings)


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """An allocation, or a cluster that answers: its programs may be installed where there is none."""
    return "SLURM_JOB_ID" in environment or slurm.answers()
