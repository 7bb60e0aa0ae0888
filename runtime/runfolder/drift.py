"""Tells whether the steps of a run keep to the prediction of its plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from planner.plan import Plan, awaited_ns
from planner.timeline import WARM_UP_STEPS
from planner.units import format_duration
from runtime.runfolder.job import MOST_READERS, Job
from runtime.runfolder.metrics import JUDGED_STEPS

NOTABLE_WAIT = 0.05  # of a step, for samples


def outside_bars(plan: Plan, measured_ns: float, workers: int = 0) -> str:
    """Says that steps are outside the error bars of their plan.

    Args: `measured_ns` is the median of recent steps; `workers` are the readers of a rank.
    Returns: one sentence; empty where the steps are within the bars, or the plan has none.
    """
    step = plan.prediction
    high_ns = step.high_ns + awaited_ns(plan, workers) - step.step_ns
    if step.low_ns == step.high_ns or step.low_ns <= measured_ns <= high_ns:
        return ""
    rests = f"the corrections of {plan.fitted.summary}" if plan.fitted else "the profile alone"
    return (
        f"steps take {format_duration(measured_ns)}, outside the predicted {format_duration(step.low_ns)} to "
        f"{format_duration(high_ns)}, which rest on {rests}; `shardwright plan --replan-from` this run would know better"
    )


def readers_of(job: Job) -> int:
    """Returns the readers of a rank by which a run is judged.

    Args: `job` may leave their number to each rank, which then takes as many as hide reading.
    """
    return MOST_READERS if job.data_workers is None else job.data_workers


def waiting(steps: Collection[tuple[float, float]]) -> str:
    """Says that a rank has waited for its samples; empty where it has hardly.

    Args: `steps` are durations of steps, each with the part that was waited, in seconds.
    """
    took_s, waited_s = (median(row[i] for row in steps) if steps else 0.0 for i in (0, 1))
    if waited_s <= NOTABLE_WAIT * took_s:
        return ""
    return (
        f"ranks wait for samples {format_duration(waited_s * 1e9)} of {format_duration(took_s * 1e9)} a step "
        f"({waited_s / took_s:.0%}); more readers (--data-workers auto) or samples in memory (--store ram) shorten it"
    )


def usual_s(seconds: Sequence[float], waits: Collection[tuple[float, float]]) -> float:
    """Returns what steps take: their median, and their mean where ranks wait for samples.

    Several readers deliver at about the same time, so that one step waits long and the next ones hardly.
    Args: `seconds` are of steps after the warm-up, one at least; `waits` are durations with the part that was waited.
    """
    return fmean(seconds) if waiting(waits) else median(seconds)


@dataclass
class DriftWatch:
    """A watch over the steps of a running rank. It says once that they have left the error bars, or wait for samples."""

    plan: Plan
    workers: int = 0  # readers of a rank
    seen: int = 0
    said: bool = False
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=JUDGED_STEPS))

    def step(self, seconds: float, waited_s: float = 0.0) -> str:
        """Takes note of one step.

        Args: `seconds` is the step's duration, of which the rank waited `waited_s` for samples.
        Returns: what is to be said the first time that there is something, else an empty text.
        """
        self.seen += 1
        if self.seen > WARM_UP_STEPS:
            self.latest.append((seconds, waited_s))
        if self.said or len(self.latest) < JUDGED_STEPS:
            return ""
        measured_ns = usual_s([took_s for took_s, _ in self.latest], self.latest) * 1e9
        found = (waiting(self.latest), outside_bars(self.plan, measured_ns, self.workers))
        self.said = any(found)
        return "; ".join(said for said in found if said)
