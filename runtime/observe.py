"""A run's folder as what corrections are fitted to."""

from __future__ import annotations

from pathlib import Path

from planner import plan_yaml
from planner.calibrate import Observation
from planner.errors import BadInput
from planner.timeline import Timeline
from runtime import job as jobs
from runtime.paths import Paths


def observation(folder: Path) -> Observation:
    paths = Paths(folder)
    if not paths.plan.exists():
        raise BadInput("is no run folder", where=str(folder), allowed="a folder that launch made")
    if not paths.trace.exists():
        raise BadInput("has no trace: no rank finished a step", where=str(folder))
    plan, timeline = plan_yaml.load(paths.plan), Timeline.load(paths.trace)
    return Observation(plan=plan, timeline=timeline, content=jobs.read(paths).content)
