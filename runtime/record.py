"""A run folder as the planner's reports take it."""

from __future__ import annotations

from pathlib import Path

from planner import plan_yaml
from planner.errors import BadInput
from planner.run_record import RunRecord
from planner.timeline import Timeline
from runtime import status
from runtime.metrics import losses_of


def record(folder: Path) -> RunRecord:
    paths = status.open_run(folder)
    if not paths.trace.exists():
        raise BadInput("has no trace: no rank finished a step", where=str(folder))
    outcome = status.outcome_of(paths)
    return RunRecord(
        folder=str(folder),
        state=outcome.state if outcome is not None else "not ended",
        plan=plan_yaml.load(paths.plan),
        measured=Timeline.load(paths.trace),
        losses=losses_of(paths),
    )
