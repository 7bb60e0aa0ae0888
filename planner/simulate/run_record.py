"""The record of a run as the planner sees it: its plan, what every rank did when, and its losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from planner.errors import BadInput
from planner.plan import Plan, coordinates, ranks_of_worker
from planner.shown import Shown
from planner.simulate.simulate import simulate_in_stride, simulate_plan
from planner.timeline import WARM_UP_STEPS, Comparison, Timeline, compare


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord(Shown):
    """A finished or interrupted run: its plan, its measured timeline and its losses, for comparison and calibration."""

    folder: str
    state: str
    plan: Plan
    measured: Timeline
    losses: Mapping[int, float]  # by step, from 1
    machine: str = ""  # a sentence where the machine was busy with other work

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Returns the measured steps, without the warm-up where more steps came after it."""
        return tuple(self.measured.steps_after(WARM_UP_STEPS))

    @cached_property
    def predicted(self) -> Timeline:
        """Returns the timeline of one step by the plan's own times."""
        return simulate_plan(self.plan)

    @cached_property
    def comparison(self) -> Comparison:
        """Returns the plan's steps in stride against the measured steps, without the warm-up."""
        every = len(set(self.measured.step.tolist()))
        return compare(simulate_in_stride(self.plan), self.measured, skip_steps=every - len(self.steps))

    @cached_property
    def typical_step(self) -> int:
        """Returns the step of median length."""
        if not self.steps:
            raise BadInput("has no trace: no rank finished a step", where=self.folder)
        lengths = self.measured.step_lengths()
        by_length = sorted(self.steps, key=lambda step: (lengths[step], step))
        return by_length[(len(by_length) - 1) // 2]

    @cached_property
    def slowest_group(self) -> tuple[int, ...]:
        """Returns the ranks, one a worker, of the replica and shard that ended last in the typical step."""
        step = self.measured.of_step(self.typical_step)
        last = int(step.rank[step.end_ns.argmax()])
        at = coordinates(self.plan.axes, last)
        position = ranks_of_worker(self.plan.axes, at.pipeline).index(last)
        workers = range(self.plan.axes.pipeline)
        return tuple(ranks_of_worker(self.plan.axes, worker)[position] for worker in workers)

    def to_rows(self) -> list[dict[str, object]]:
        """Returns one dictionary a step with its loss and length in nanoseconds; the warm-up is included."""
        lengths = self.measured.step_lengths()
        return [
            {"step": n, "loss": self.losses.get(n), "step_ns": took} for n, took in sorted(lengths.items())
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns the steps and the comparison as plain data."""
        return {
            "folder": self.folder,
            "state": self.state,
            "steps": self.to_rows(),
            **self.comparison.to_dict(),
        }
