"""A run as a value to hold, in a notebook say, wherever it runs: `launch` returns it at once.

run = launch(plan)
run.state, run.metrics(), run.logs(rank=0)
run.cancel()
run.wait().check().losses
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planner import terminal
from planner.errors import BadInput
from planner.plan import Plan
from planner.simulate import RunRecord
from runtime import slurm
from runtime.launch import finished as records
from runtime.launch import status
from runtime.runfolder import Outcome, Paths, steps_of, unused

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from runtime.runfolder import Result

Backend = Literal["local", "slurm"]
HEADS = ("step", "loss", "seconds")


class Rows(list[dict[str, float]]):
    """One row a step; a list of dictionaries, as pandas.DataFrame takes it, that shows itself as a table."""

    def __repr__(self) -> str:
        return terminal.columns([[f"{row[head]:.6g}" for head in HEADS] for row in self], HEADS)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{head}</th>" for head in HEADS)
        rows = (
            "".join(f"<td style='text-align:right'>{row[head]:.6g}</td>" for head in HEADS) for row in self
        )
        return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


@dataclass(frozen=True, repr=False)
class Handle:
    paths: Paths
    ranks: int

    @property
    def folder(self) -> Path:
        return self.paths.root

    @property
    def state(self) -> str:
        """queued, running, done, stopped, failed, hung, lost, cancelled, interrupted, ended, or as SLURM says."""
        return status.of(self.folder).state

    def logs(self, rank: int | None = None) -> str:
        """Of one rank, or of all and of what holds them."""
        return "\n".join(line for _, line in status.lines_of(self.folder, rank, follow=False))

    def metrics(self) -> Rows:
        found = steps_of(self.paths)
        return Rows({"step": step, "loss": row.loss, "seconds": row.seconds} for step, row in found.items())

    def cancel(self) -> None:
        """It can be resumed from its last complete checkpoint."""
        status.cancel(self.folder)

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[status.Status], None] | None = None
    ) -> Outcome:
        raise NotImplementedError

    def wait(self, timeout_s: float | None = None) -> Result:
        """Until the run has ended, through all its restarts; TimeoutError where that takes longer."""
        from runtime.runfolder import result_of

        return result_of(self.paths, self.ranks, self.outcome(timeout_s))

    def record(self) -> RunRecord:
        """What it has left so far, beside its plan; the ranks' traces are there once it has ended."""
        return records.record(self.folder)

    def plot(self) -> Figure:
        """Predicted against measured, once it has ended."""
        return self.record().plot()

    def __repr__(self) -> str:
        return status.status_text(status.of(self.folder))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def launch(
    plan: Plan,
    folder: Path | str | None = None,
    *,
    steps: int = 10,
    on: Backend | None = None,
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> Handle:
    """As a job where SLURM answers, in processes of this machine otherwise, unless `on` says. `options` are those of a
    site file for SLURM, `settings` fields of Job."""
    name = Path(plan.model.workload).stem or "training"
    where = Path(folder) if folder is not None else unused(name)
    chosen = on or ("slurm" if options or has_slurm() else "local")
    if chosen == "slurm":
        from runtime import slurm

        wanted = slurm.over(slurm.load(), options or {})
        return slurm.launch(plan, where, steps=steps, name=name, options=wanted, **settings)  # type: ignore[arg-type]
    if chosen != "local" or options:
        raise BadInput(f"on={chosen!r}", where="launch", allowed="'local', or 'slurm', which options are for")
    from runtime import local

    return local.launch(plan, where, steps=steps, **settings)  # type: ignore[arg-type]


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """An allocation, or a cluster that answers: its programs may be installed where there is none."""
    return "SLURM_JOB_ID" in environment or slurm.answers()
