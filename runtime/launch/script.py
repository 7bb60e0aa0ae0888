"""Training by a plan from a script or notebook of one's own.

    run = Run.open("plan.yaml", "runs/a")
    for batch in run.batches():
        loss = run.step(batch)
        if run.steps_done == 100:
            break
    run.close()

Started by `launch PLAN -- script.py` the same lines run on every rank; started alone they are the whole training in
one process.
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
    """One training by a plan, in the hand of a script."""

    @classmethod
    def open(
        cls,
        plan: Plan | Path | str,
        folder: Path | str = FOLDER,
        *,
        workload: Workload | None = None,
        **settings: object,
    ) -> Self:
        """Opens the run of this rank inside of a launched run, whatever is given; else the plan's training in this
        one process.

        Args: `settings` are fields of Job.
        """
        training = launched()
        if training is None:
            chosen = plan if isinstance(plan, Plan) else plans.load(plan)
            training = open_inline(
                chosen, folder, steps=1, workload=workload, refuse=slurm.refuse, **settings
            )
        return cls(training)
