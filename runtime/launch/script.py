"""`Run`: training by a plan from a user's own script or notebook.

    run = Run.open("plan.yaml", "runs/a")
    for batch in run.batches():
        loss = run.step(batch)
        if run.steps_done == 100:
            break
    run.close()

With `launch PLAN -- script.py`, the script runs on every rank of the run. Started alone, it trains the whole
plan in its own process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from planner import plan as plans
from planner.plan import Plan
from planner.workload import Workload
from runtime import slurm
from runtime.train import StepLoop, launched, open_inline

FOLDER = "runs/latest"


class Run(StepLoop):
    """One training by a plan, driven by a user's script."""

    @classmethod
    def open(
        cls,
        plan: Plan | Path | str,
        folder: Path | str = FOLDER,
        *,
        workload: Workload | None = None,
        **settings: object,
    ) -> Self:
        """Opens the training of this rank inside a launched run, or else the whole training in this process.

        Args: inside a launched run, all arguments are ignored; `settings` are fields of Job.
        Returns: a run that goes on from the last complete checkpoint of `folder`.
        Raises: BadInput and BadPlan for whatever can be known before the first step.
        """
        training = launched()
        if training is None:
            chosen = plan if isinstance(plan, Plan) else plans.load(plan)
            training = open_inline(
                chosen, folder, steps=1, workload=workload, refuse=slurm.refuse, **settings
            )
        return cls(training)
