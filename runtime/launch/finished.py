"""A finished run compared with its plan, and read for corrections and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner import plan as plans
from planner.calibrate import Observation
from planner.errors import BadInput, BadPlan
from planner.plan import Plan, with_store
from planner.simulate import RunRecord, simulate_in_stride
from planner.terminal import columns
from planner.timeline import COMPARED, WARM_UP_STEPS, Comparison, Timeline, compare, compared_rows, in_words
from planner.verify import form
from runtime import runfolder
from runtime.runfolder import Paths, losses_of, outside_bars, readers_of, recent, waiting


def comparison(folder: Path) -> Comparison:
    """Compares the predicted and the measured step of a run, action by action.

    Args: `folder` is a run folder; its first steps are left out as warm-up.
    Raises: BadInput where the folder has no plan or no trace.
    """
    paths = _run(folder)
    plan = _plan_of(paths)
    measured = _measured(paths, plan)
    steps = set(measured.step.tolist())
    return compare(
        simulate_in_stride(plan), measured, skip_steps=len(steps) - len(measured.steps_after(WARM_UP_STEPS))
    )


def drift(folder: Path, found: Comparison, *, busy: bool = False) -> str:
    """Returns a sentence where the measured step is outside the error bars of its plan.

    Args: `folder` is the run folder that `found` was made from; with `busy` its machine had other work.
    Returns: an empty text where the step is within the bars.
    """
    job = runfolder.read(Paths(folder))
    plan = with_store(plans.load(Paths(folder).plan), job.store)
    return outside_bars(plan, found.measured_step_ns, readers_of(job), run=str(folder), busy=busy)


def notes(folder: Path, found: Comparison) -> list[str]:
    """Returns what to know before a ratio of measured and predicted is read.

    Args: `folder` is the run folder that `found` was made from.
    Returns: sentences: that the machine was busy, that ranks waited for samples, that the step is outside the error bars of its plan.
    """
    last = recent(Paths(folder))
    outside = drift(folder, found, busy=bool(last.machine))
    return [said for said in (last.machine, waiting(last.waits), outside) if said]


def comparison_text(found: Comparison, notes: Sequence[str] = ()) -> str:
    """Returns a comparison as text: the step, then one row for each kind of action of a stage, the worst first.

    Args: `notes` are sentences that stand before the step.
    """
    table = columns(compared_rows(found), COMPARED)
    return "\n".join([*notes, in_words(found), "", table])


def as_dict(found: Comparison) -> dict[str, object]:
    """Returns a comparison as a dictionary for JSON. Durations are in nanoseconds.

    Args: `found` is what `comparison` has returned.
    """
    return {
        "predicted_step_ns": found.predicted_step_ns,
        "measured_step_ns": found.measured_step_ns,
        "measured_idle_ns": found.measured_idle_ns,
        "predicted_idle_ns": found.predicted_idle_ns,
        "measured_between_ns": found.measured_between_ns,
        "events": [event._asdict() for event in found.events],
    }


def observation(folder: Path) -> Observation:
    """Reads a run for the fitting of corrections.

    Args: `folder` is a run folder.
    Returns: its plan, its Timeline, and whether its stages computed or slept.
    Raises: BadInput where the folder has no plan or no trace.
    """
    paths = _run(folder)
    plan = _plan_of(paths)
    return Observation(plan=plan, timeline=_measured(paths, plan), content=runfolder.read(paths).content)


def record(folder: Path) -> RunRecord:
    """Reads a run for reports.

    Args: `folder` is a run folder.
    Returns: its plan, its Timeline, its losses by step, and its state.
    Raises: BadInput where the folder is no run folder or has no trace.
    """
    paths = runfolder.open_run(folder)
    plan = _plan_of(paths)
    return RunRecord(
        folder=str(folder),
        state=_state(paths),
        plan=plan,
        measured=_measured(paths, plan),
        losses=losses_of(paths),
        machine=recent(paths).machine,
    )


def _state(paths: Paths) -> str:
    found = runfolder.outcome_of(paths)
    if paths.cancelled.exists() and (found is None or found.state != "done"):
        return "cancelled"
    return "not ended" if found is None else found.state


def _run(folder: Path) -> Paths:
    paths = Paths(folder)
    if not paths.plan.exists():
        raise BadInput("is no run folder", where=str(paths.root), allowed="a folder that launch made")
    return paths


def _plan_of(paths: Paths) -> Plan:
    """Returns the plan of a run, whose tables fit together.

    Raises: BadPlan where they do not; nothing could then be simulated beside the run.
    """
    plan = plans.load(paths.plan)
    if found := form(plan):
        raise BadPlan("\n".join(f"{paths.plan}: {each}" for each in found))
    return plan


def _measured(paths: Paths, plan: Plan) -> Timeline:
    found = runfolder.trace_of(paths, len(plan.places))
    if not len(found) and not paths.trace.exists():
        allowed = "a run whose ranks left a trace: they do at each checkpoint (--save-every) and at their end"
        raise BadInput("has no trace", where=str(paths.root), allowed=allowed)
    if wrong := found.misfit(ranks=len(plan.places), stages=len(plan.stages)):
        raise BadInput(f"is no trace of this run's plan: {wrong}", where=str(paths.trace))
    return found
