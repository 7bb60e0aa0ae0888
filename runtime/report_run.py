"""A finished run beside its plan: what was predicted, what was measured, stage by stage."""

from __future__ import annotations

from pathlib import Path

from planner import plan_yaml
from planner.console import columns, duration
from planner.errors import BadInput
from planner.simulate import simulate_in_stride
from planner.timeline import Comparison, Timeline, compare
from runtime.drift import outside
from runtime.paths import Paths

WARM_UP_STEPS = 2  # connections are opened and memory is first touched in them


def comparison(folder: Path) -> Comparison:
    paths = Paths(folder)
    if not paths.plan.exists():
        raise BadInput("is no run folder", where=str(folder), allowed="a folder that launch made")
    if not paths.trace.exists():
        raise BadInput("has no trace: no rank finished a step", where=str(folder))
    measured = Timeline.load(paths.trace)
    steps = len(set(measured.step.tolist()))
    skip = min(WARM_UP_STEPS, steps - 1)
    return compare(simulate_in_stride(plan_yaml.load(paths.plan)), measured, skip_steps=skip)


def drift(folder: Path, found: Comparison) -> str:
    """What to say of a run whose steps left the error bars of its plan; nothing where they did not."""
    return outside(plan_yaml.load(Paths(folder).plan), found.measured_step_ns)


def text(found: Comparison, drift: str = "") -> str:
    ratio = found.measured_step_ns / found.predicted_step_ns if found.predicted_step_ns else 0.0
    rows = [
        (
            f"{event.stage}{event.name}",
            duration(event.predicted_ns),
            duration(event.measured_ns),
            f"{event.ratio:.2f}",
        )
        for event in sorted(found.events, key=lambda e: (e.stage, e.name))
        if event.predicted_ns
    ]
    table = columns(rows, ("stage and action", "predicted", "measured", "ratio"))
    return (
        f"step: predicted {duration(found.predicted_step_ns)}, measured {duration(found.measured_step_ns)}, "
        f"ratio {ratio:.2f}; a rank stood idle for {duration(found.measured_wait_ns)} of it\n{drift}\n{table}"
    )


def as_dict(found: Comparison) -> dict[str, object]:
    return {
        "predicted_step_ns": found.predicted_step_ns,
        "measured_step_ns": found.measured_step_ns,
        "measured_wait_ns": found.measured_wait_ns,
        "events": [event._asdict() for event in found.events],
    }
