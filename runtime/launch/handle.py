"""Launches a run and returns a handle to it at once, wherever the run goes on.

run = launch(plan)
run.state, run.metrics(), run.logs(rank=0)
run.cancel()
run.wait().check().losses
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner import plan as plans
from planner import verify
from planner.errors import BadInput
from planner.plan import Plan
from planner.shown import CellBar, Shown
from planner.simulate import RunRecord
from runtime import local, runfolder, slurm
from runtime.backend import Backend
from runtime.launch import finished, logs, status
from runtime.runfolder import Evaluated, Outcome, Paths, Result, evaluations_of, result_of, steps_of, unused

if TYPE_CHECKING:
    from planner.workload import Workload
    from runtime.train import Model

Where = Literal["inline", "local", "slurm"]
_OF_A_PLAN = ("steps", "deadline_s", "generation")  # of a job, which a new plan has anew
HEADS = ("step", "loss", "seconds", "samples_per_second", "learning_rate", "gradient_norm")


class StepRows(Shown, list[dict[str, float]]):
    """One row for each step. It is a list of dictionaries, as pandas.DataFrame takes it, and shows itself as
    a table.
    """

    def to_rows(self) -> list[dict[str, float]]:
        """Returns the rows as a plain list."""
        return list(self)

    def heads(self) -> tuple[str, ...]:
        return tuple(head for head in HEADS if any(not math.isnan(row[head]) for row in self))

    def lines(self) -> list[list[str]]:
        return [[f"{row[head]:.6g}" for head in self.heads()] for row in self]


@dataclass(frozen=True, repr=False)
class Handle(Shown):
    """One launched run: its folder, its number of ranks, and the backend where it goes on."""

    paths: Paths
    ranks: int
    backend: Backend

    @property
    def folder(self) -> Path:
        """Returns the run folder."""
        return self.paths.root

    @property
    def state(self) -> str:
        """Returns the state of the run: queued, running, done, stopped, failed, hung, lost, cancelled, interrupted
        or ended, or a word of SLURM."""
        return status.of(self.folder).state

    @property
    def job(self) -> int | None:
        """Returns the number of the SLURM job, None for a run of this machine."""
        return self.backend.job if isinstance(self.backend, slurm.SlurmBackend) else None

    def logs(self, rank: int | None = None) -> str:
        """Returns the log of one rank, or those of all ranks and of the supervisor.

        Args: `rank` counts from 0; None is for all.
        Raises: BadInput where the rank has no log.
        """
        return "\n".join(line for _, line in logs.lines_of(self.folder, rank, follow=False))

    def metrics(self) -> StepRows:
        """Returns the steps so far: number, mean loss, seconds, samples a second, learning rate, and the gradients'
        norm. A value that is not known is NaN."""
        return StepRows({"step": step, **asdict(row)} for step, row in steps_of(self.paths).items())

    @property
    def losses(self) -> dict[int, float]:
        """Returns the mean loss of each step so far; `wait().losses` has those of all steps."""
        return runfolder.losses_of(self.paths)

    def evaluations(self) -> list[Evaluated]:
        """Returns the evaluations of `valid_dataset()` so far, by step: loss, metrics, and whether it was the best."""
        return evaluations_of(self.paths)

    def cancel(self) -> None:
        """Ends the run. It can be resumed from its last complete checkpoint.

        Raises: BadInput where the run does not go on.
        """
        self.backend.cancel()

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[status.Status], None] | None = None
    ) -> Outcome:
        """Waits until the run has ended.

        Args: `tell` is called with the status now and then.
        Returns: how the run ended.
        Raises: TimeoutError after `timeout_s`.
        """
        look = None if tell is None else lambda: tell(status.of(self.folder))
        return self.backend.wait(timeout_s, look)

    def wait(self, timeout_s: float | None = None) -> Result:
        """Waits until the run has ended, through all its restarts.

        Returns: its losses by step and its Timeline; `.check()` raises where the run failed.
        Raises: TimeoutError after `timeout_s`.
        """
        with CellBar(str(self.folder)) as bar:

            def tell(found: status.Status) -> None:
                loss = [f"loss {found.loss:.5g}"] if found.loss is not None else []
                bar.tell(found.step / max(1, found.steps), [f"step {found.step} of {found.steps}", *loss])

            return result_of(self.paths, self.ranks, self.outcome(timeout_s, tell if bar.shown else None))

    def record(self) -> RunRecord:
        """Returns the run beside its plan, as reports take it; it has all traces once the run has ended."""
        return finished.record(self.folder)

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
    """Launches a training by a plan and returns at once.

    Args: `on` is "local", "slurm" or "inline" (in this process, done at return); without it, SLURM is used where it
      answers or `options` are given, those of a site file. `settings` are fields of Job; `folder` is new by default.
    Raises: BadInput and BadPlan for whatever can be known before the run starts.
    Example: `launch(plan, steps=1000, on="slurm", options={"partition": "gpu"})`
    """
    name = Path(plan.model.workload).stem or "training"
    where = Path(folder) if folder is not None else unused(name)
    chosen = on or ("slurm" if options or has_slurm() else "local")
    settings.setdefault("device", device_for(plan, chosen))
    if chosen == "slurm":
        wanted = slurm.over(slurm.load(), options or {})
        return launch_slurm(plan, where, steps=steps, name=name, options=wanted, **settings)  # type: ignore[arg-type]
    if chosen not in ("inline", "local") or options:
        allowed = "'inline', 'local', or 'slurm', which options are for"
        raise BadInput(f"on={chosen!r}", where="launch", allowed=allowed)
    if chosen == "inline":
        launch_inline(plan, where, steps=steps, **settings)  # type: ignore[arg-type]
        return handle_of(where)
    return launch_local(plan, where, steps=steps, **settings)  # type: ignore[arg-type]


def device_for(plan: Plan, on: str) -> Literal["cpu", "cuda"]:
    """Returns the device that ranks train on where none is named.

    Args: a plan whose costs are those of a GPU trains on GPUs under SLURM (`on="slurm"`), and elsewhere where
      this machine has one.
    """
    if plan.provenance.profile.startswith("cpu"):
        return "cpu"
    if on == "slurm":
        return "cuda"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def launch_local(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    detach: bool = False,
    **settings: object,
) -> Handle:
    """Launches a run with every rank as a process of this machine, and returns at once.

    Args: a `detach`ed run goes on after this process.
    Raises: BadInput and BadPlan for whatever can be known before the run starts.
    """
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
    model: Model | None = None,
    flexible: slurm.Elastic | None = None,
    **settings: object,
) -> Handle:
    """Queues a run as a SLURM job, and returns at once.

    Args: `model` is that of the plan where it was captured before; `flexible` lets the job have fewer or more nodes
      than the plan; `settings` are fields of Job.
    Raises: BadInput and BadPlan for whatever can be known before the job is queued.
    """
    from runtime.train import job_of

    chosen = options or slurm.Options()
    job = job_of(plan, steps, dict(settings))
    given = {"workload": workload, "model": model, "flexible": flexible}
    paths, _ = slurm.prepared(plan, name, Path(folder), job, chosen, **given)  # type: ignore[arg-type]
    return Handle(paths, len(plan.places), slurm.queue(paths))


def rescale(run: Handle, plan: Plan, *, options: slurm.Options | None = None) -> Handle:
    """Goes on with a run of SLURM by another plan of the same training, such as one for more or fewer nodes.

    The job stops at the border of a step, and a new one goes on from its checkpoint. Every sample is trained once.
    Args: `plan` has the model and the global batch of the run; `options` are those of the site file by default.
    Returns: the run under its new plan; one that has ended meanwhile as it is.
    Raises: BadInput where the run has no job that waits or runs, or the plan is of another training.
    """
    before = plans.load(run.paths.plan)
    for what, own, other in (
        ("model", plan.model.fingerprint, before.model.fingerprint),
        ("global batch", plan.batch.samples, before.batch.samples),
    ):
        if own != other:
            raise BadInput(f"the {what} is {own}, and {other} in the run", where=str(run.folder))
    verify.check(plan)
    from runtime.train import Model

    model = Model.of(plan)  # while the job still trains
    slurm.stop(run.paths)
    if run.state == "done":
        return run
    return go_on(run.folder, plan, options=options, model=model)


def go_on(
    folder: Path, plan: Plan, *, options: slurm.Options | None = None, model: Model | None = None
) -> Handle:
    """Queues a run of SLURM again that has no job, by a plan of the same training.

    Args: `folder` is its run folder, whose settings stay; `options` are those of the site file by default.
    Raises: BadInput and BadPlan for whatever can be known before the job is queued.
    """
    job = runfolder.read(Paths(folder))
    kept = {name: getattr(job, name) for name in vars(job) if name not in _OF_A_PLAN}
    name = Path(plan.model.workload).stem or "training"
    return launch_slurm(plan, folder, steps=job.steps, name=name, options=options, model=model, **kept)


def handle_of(folder: Path) -> Handle:
    """Returns the run of this folder, wherever it goes on.

    Raises: BadInput where it is no run folder.
    """
    paths = runfolder.open_run(folder)
    return Handle(paths, len(plans.load(paths.plan).places), status.backend_of(paths))


def launch_inline(
    plan: Plan, folder: Path | str, *, steps: int, workload: Workload | None = None, **settings: object
) -> Result:
    """Trains the whole plan in this process, with `settings` of a Job, and returns losses and Timeline when it is done."""
    from runtime.train import train_inline

    return train_inline(plan, folder, steps=steps, workload=workload, refuse=slurm.refuse, **settings)


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether SLURM can be used: inside of an allocation, or with a cluster that answers.

    Args: its programs may be installed where no cluster is, so `sinfo` is asked unless `environment` has a job.
    """
    return "SLURM_JOB_ID" in environment or slurm.answers()
