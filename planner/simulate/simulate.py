"""When everything happens, and what memory it takes over time: a Timeline of the same type that a real run records.

The layers below: `planner.sweep` (compile, makespan, makespans, critical_path), `planner.period` (the steady state),
`planner.memory` (bytes in use along each worker's order). This file is what others import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.plan import Plan, schedule_of
from planner.schedule import check, updates_at_use
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
from planner.timeline import Timeline, concatenate

_STRIDES = 4


def simulate_plan(plan: Plan, *, steps: int = 1) -> Timeline:
    """What a plan's own orders and durations amount to, one rank a pipeline worker; BadPlan with the grid drawn where
    the orders are no schedule."""
    update = plan.schedule.update
    schedule = check(schedule_of(plan), plan.hops, barrier=update == "barrier")
    compiled = compile(schedule, plan.hops, update=update)
    return simulate(compiled, duration_vector(plan.times, plan.hops), steps=steps)


def simulate_in_stride(plan: Plan) -> Timeline:
    """One step; or, where updates wait for the next, as many as it takes until each is like the one before."""
    return simulate_plan(plan, steps=_STRIDES if updates_at_use(schedule_of(plan)) else 1)


def period_of_plan(plan: Plan) -> int:
    """Nanoseconds from one step to the next, by a plan's own orders and durations."""
    compiled = compile(schedule_of(plan), plan.hops, update=plan.schedule.update)
    return period(compiled, duration_vector(plan.times, plan.hops)).period_ns


def simulate(
    compiled: Compiled,
    durations: Sequence[int] | IntArray,
    memory: Sequence[StageBytes] = (),
    *,
    static_bytes: Sequence[int] = (),
    steps: int = 1,
) -> Timeline:
    """Every action, message (as SEND on its sender's rank) and collective; memory samples if bytes a stage are given.

    `static_bytes` is what each worker holds throughout. Steps follow each other as `update` says: where devices are
    free (rolling), or once all are done (barrier).
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
    """Bytes while each action runs and after it, all workers in turn."""
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
