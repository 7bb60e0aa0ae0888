"""Simulates a schedule: when everything happens, and what memory that takes over time.

The answer is a Timeline, the same type that a real run records.

>>> from planner.plan import StageTimes
>>> from planner.schedule import generate
>>> from planner.simulate.longest_path import neighbour_hops
>>> times = [StageTimes(forward_ns=10, backward_ns=20, input_grad_ns=10, weight_grad_ns=10)] * 2
>>> hops = neighbour_hops(2, act_ns=1, grad_ns=1)
>>> compiled = compile(generate("1f1b", workers=2, micros=2), hops)
>>> simulate(compiled, duration_vector(times, hops)).makespan_ns
92

Terms:
- a *hop* is the way of a message between two stages;
- a *duration vector* has the nanoseconds of every (kind, stage) and of every hop;
- steps are *rolling* where the next step starts as devices are free; a *barrier* waits for all of them.

Files below this one: `longest_path.py` (ends of all events), `period.py` (steps in stride), `peaks.py` and
`lifetimes.py` (bytes in use along each worker's order).

A `RunRecord` is a run as the planner sees it: its plan, what every rank did when, and its losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.plan import Plan, coordinates, distinct_replicas, ranks_of_worker, schedule_of, times_of
from planner.schedule import check_schedule, updates_at_use
from planner.shown import Shown
from planner.simulate.lifetimes import StageBytes
from planner.simulate.longest_path import (
    Compiled,
    TimelineRows,
    compile,
    duration_vector,
    node_ends,
    vector_of,
)
from planner.simulate.peaks import bytes_in_use, weights
from planner.simulate.period import period
from planner.timeline import WARM_UP_STEPS, Comparison, Timeline, compare, concatenate

_STRIDES = 4


def simulate_plan(plan: Plan, *, steps: int = 1) -> Timeline:
    """Simulates a plan by its own orders and durations, one rank a worker of the pipeline.

    Where shares differ, the replica that takes longest is simulated: the others wait for it.
    Args: `steps` is how many follow each other.
    Raises: BadPlan with the grid drawn where the orders are no schedule.
    """
    update, replicas = plan.schedule.update, distinct_replicas(plan)
    schedule = check_schedule(schedule_of(plan), plan.hops, barrier=update == "barrier")
    last = replicas[0]
    if len(replicas) > 1:
        last = max(replicas, key=lambda replica: period_of_replica(plan, replica))
    if plan.batch.share(last) < schedule.micros:
        schedule = schedule_of(plan, last)
    compiled = compile(schedule, plan.hops, update=update)
    return simulate(compiled, duration_vector(times_of(plan, last), plan.hops), steps=steps)


def simulate_in_stride(plan: Plan) -> Timeline:
    """Simulates one step; where updates wait for the next step, as many steps as it takes until they are alike.

    Args: `plan` is simulated by its own times.
    """
    return simulate_plan(plan, steps=_STRIDES if updates_at_use(schedule_of(plan)) else 1)


def period_of_plan(plan: Plan) -> int:
    """Returns the nanoseconds from one step to the next, by a plan's own orders and durations.

    Args: `plan` holds orders that can run. Where shares differ, the replica that takes longest counts.
    """
    return max(period_of_replica(plan, replica) for replica in distinct_replicas(plan))


def period_of_replica(plan: Plan, replica: int) -> int:
    """Returns the nanoseconds from one step to the next of one replica by itself.

    Args: `replica` is a number along the data axis.
    """
    compiled = compile(schedule_of(plan, replica), plan.hops, update=plan.schedule.update)
    return period(compiled, duration_vector(times_of(plan, replica), plan.hops)).period_ns


def simulate(
    compiled: Compiled,
    durations: Sequence[int] | IntArray,
    memory: Sequence[StageBytes] = (),
    *,
    static_bytes: Sequence[int] = (),
    steps: int = 1,
) -> Timeline:
    """Lists every action, message (as SEND on its sender's rank) and gradient sum with its times.

    Args: `memory` has bytes a stage and adds memory samples; `static_bytes` is what each worker holds throughout.
        Steps follow each other as `update` says: where devices are free (rolling), or once all are done (barrier).
    Raises: BadInput for less than one step, or tables that do not have a row for each stage and worker.
    """
    if steps < 1:
        raise BadInput(f"{steps} steps", allowed="1 or more")
    vector = vector_of(compiled, durations)
    took = np.append(vector, 0)[compiled.graph.cost]
    in_use = _in_use(compiled, memory, static_bytes) if memory else None
    releases: IntArray = np.zeros(compiled.graph.sources, np.int64)
    parts = []
    for step in range(steps):
        ends = node_ends(compiled, vector, releases)
        parts.append(_timeline(compiled.rows, ends, took, step, in_use))
        releases = ends[compiled.graph.tails]
        if compiled.update == "barrier":
            releases = np.full_like(releases, ends.max())
    return concatenate(parts)


def _in_use(compiled: Compiled, memory: Sequence[StageBytes], static_bytes: Sequence[int]) -> IntArray:
    """Returns the bytes while each action runs and after it, all workers in turn."""
    schedule = compiled.schedule
    always = list(static_bytes) or [0] * schedule.workers
    if len(memory) != schedule.stages:
        raise BadInput(f"bytes of {len(memory)} stages", where="memory", allowed=f"{schedule.stages}")
    if len(always) != schedule.workers:
        raise BadInput(f"bytes of {len(always)} workers", where="static_bytes", allowed=f"{schedule.workers}")
    table = weights(memory)
    parts = [base + bytes_in_use(own, table) for base, own in zip(always, compiled.memory_spans, strict=True)]
    return np.concatenate(parts).ravel()


def _timeline(
    rows: TimelineRows, ends: IntArray, took: IntArray, step: int, in_use: IntArray | None
) -> Timeline:
    end = ends[rows.nodes]
    start = end - took[rows.nodes]
    wait = np.where(rows.before >= 0, start - ends[rows.before], 0)
    columns = {"rank": rows.ranks, "code": rows.codes, "start_ns": start, "end_ns": end, "wait_ns": wait}
    if in_use is None:
        return Timeline(step=np.full(len(end), step, np.int64), **columns)
    n = rows.computed
    return Timeline(
        step=np.full(len(end), step, np.int64),
        **columns,
        memory_step=np.full(2 * n, step, np.int64),
        memory_rank=rows.ranks[:n].repeat(2),
        memory_ns=np.stack([start[:n], end[:n]], axis=1).ravel(),
        memory_bytes=in_use,
    )


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
