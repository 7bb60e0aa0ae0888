"""The certificate of a plan as text."""

from __future__ import annotations

import re

from planner.plan import Plan, Rival
from planner.terminal import columns
from planner.units import format_bytes, format_duration


def _certificate(plan: Plan) -> str:
    proof = plan.certificate
    if proof is None:
        return "No certificate: this plan was not found by the solver."
    lines = [
        f"Proof: objective {format_duration(proof.objective_ns)}, bound {format_duration(proof.bound_ns)}, gap {proof.gap:.2%} "
        f"within {proof.scope}."
    ]
    if proof.rivals:
        rows = [
            (
                r.name,
                format_duration(r.step_ns) if r.step_ns is not None else "does not fit",
                why_lost(plan, r),
            )
            for r in proof.rivals
        ]
        lines += ["", columns(rows, ("priced beside it", "step", "why it lost"))]
    return "\n".join(lines)


def why_lost(plan: Plan, rival: Rival) -> str:
    """Bytes as people read them; what is no slower has not lost, and is told as what it is."""
    why = re.sub(r"\b(\d{4,}) bytes\b", lambda size: format_bytes(int(size[1])), rival.why)
    if rival.step_ns is not None and rival.step_ns < plan.prediction.step_ns:
        return f"faster, but not what was asked for; {why}"
    return f"the plan itself; {why}" if _is_the_plan(plan, rival) else why


def _is_the_plan(plan: Plan, rival: Rival) -> bool:
    axes, schedule, batch = plan.axes, plan.schedule, plan.batch
    mesh = f"data {axes.data} x pipeline {axes.pipeline}"
    shape = f"{schedule.family} {mesh}, micro-batch {batch.micro} x {batch.micros}"
    named = f"{rival.name.split(': ')[-1]},".startswith(f"{shape},")
    return named and rival.step_ns == plan.prediction.step_ns
