"""Takes corrections out of a plan's times or puts them in, and predicts the step again; decisions stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from planner.cluster import Correction, Corrections
from planner.plan import Hop, Plan, StageTimes
from planner.simulate import period_of_plan

NS = 1e9
_Change = Callable[[Correction | None, int], int]


def nominal_plan(plan: Plan) -> Plan:
    """Returns the plan with its times before corrections.

    Args: `plan` may have been made with corrections (`plan.fitted`) or without.
    Returns: the plan itself where it has no corrections; else a copy, predicted again.
    """
    return plan if plan.fitted is None else _with_times(plan, plan.fitted, _out, None)


def repredicted(plan: Plan, fitted: Corrections) -> Plan:
    """Returns the plan with these corrections in place of the ones that it was made with.

    Args: `fitted` changes times and hops, and its `step_spread` sets the error bar.
    Returns: a copy with a new prediction and without a certificate.
    """
    return _with_times(nominal_plan(plan), fitted, _in, fitted)


def _in(correction: Correction | None, planned_ns: int) -> int:
    return planned_ns if correction is None else round(correction.seconds(planned_ns / NS) * NS)


def _out(correction: Correction | None, corrected_ns: int) -> int:
    if correction is None:
        return corrected_ns
    return max(0, round((corrected_ns - correction.start_s * NS) / correction.factor))


def _with_times(plan: Plan, by: Corrections, change: _Change, fitted: Corrections | None) -> Plan:
    changed = plan.model_copy(
        update={
            "times": tuple(_stage(times, by, change) for times in plan.times),
            "hops": tuple(_hop(plan, hop, by, change) for hop in plan.hops),
            "fitted": fitted,
        }
    )
    step, left = period_of_plan(changed), min(by.step_spread, 1.0) if fitted else 0.0
    bars = {"low_ns": floor(step * (1 - left)), "high_ns": ceil(step * (1 + left))}
    prediction = plan.prediction.model_copy(update={"step_ns": step, **bars})
    return changed.model_copy(update={"prediction": prediction, "certificate": None})


def _stage(times: StageTimes, by: Corrections, change: _Change) -> StageTimes:
    return StageTimes(
        forward_ns=change(by.forward, times.forward_ns),
        backward_ns=change(by.backward, times.backward_ns),
        input_grad_ns=change(by.input_grad, times.input_grad_ns),
        weight_grad_ns=change(by.weight_grad, times.weight_grad_ns),
        recompute_ns=change(by.forward, times.recompute_ns) if times.recompute_ns else 0,
        sync_ns=change(by.sum, times.sync_ns) if times.sync_ns else 0,
        step_ns=change(by.update, times.step_ns),
    )


def _hop(plan: Plan, hop: Hop, by: Corrections, change: _Change) -> Hop:
    """Returns the hop with its corrected time; between stages of one worker nothing travels."""
    apart = any(row[hop.sender] != row[hop.receiver] for row in plan.schedule.place)
    return hop.model_copy(update={"ns": change(by.hop, hop.ns)}) if apart and hop.bytes else hop
