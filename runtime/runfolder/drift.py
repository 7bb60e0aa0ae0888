"""Tells whether the steps of a run keep to the prediction of its plan."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from planner.plan import Plan
from planner.timeline import WARM_UP_STEPS
from planner.units import format_duration
from runtime.runfolder.metrics import JUDGED_STEPS


def outside_bars(plan: Plan, measured_ns: float) -> str:
    """Says that steps are outside the error bars of their plan.

    Args: `measured_ns` is the median of recent steps.
    Returns: one sentence; empty where the steps are within the bars, or the plan has none.
    """
    step = plan.prediction
    if step.low_ns == step.high_ns or step.low_ns <= measured_ns <= step.high_ns:
        return ""
    rests = f"the corrections of {plan.fitted.summary}" if plan.fitted else "the profile alone"
    return (
        f"steps take {format_duration(measured_ns)}, outside the predicted {format_duration(step.low_ns)} to "
        f"{format_duration(step.high_ns)}, which rest on {rests}; `shardwright plan --replan-from` this run would know better"
    )


@dataclass
class DriftWatch:
    """A watch over the steps of a running rank. It says once that they have left the error bars."""

    plan: Plan
    seen: int = 0
    said: bool = False
    latest_s: deque[float] = field(default_factory=lambda: deque(maxlen=JUDGED_STEPS))

    def step(self, seconds: float) -> str:
        """Takes note of one step.

        Args: `seconds` is the step's duration.
        Returns: a sentence the first time that recent steps are outside the bars, else an empty text.
        """
        self.seen += 1
        if self.seen > WARM_UP_STEPS:
            self.latest_s.append(seconds)
        if self.said or len(self.latest_s) < JUDGED_STEPS:
            return ""
        found = outside_bars(self.plan, median(self.latest_s) * 1e9)
        self.said = bool(found)
        return found
