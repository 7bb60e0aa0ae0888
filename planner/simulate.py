"""When everything happens, and what memory it takes over time: a Timeline of the same type that a real run records.

The layers below: `planner.sweep` (compile, makespan, makespans, critical_path), `planner.period` (the steady state),
`planner.memory` (bytes in use along each worker's order). This file is what others import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.memory import StageBytes, occupancy
from planner.period import period, periods
from planner.plan import Plan
from planner.schedule.action import Schedule, parse_orders
from planner.schedule.graph import IntArray
from planner.sweep import (
    Bound,
    Compiled,
    compile,
    critical_path,
    duration_vector,
    makespan,
    makespans,
    neighbour_hops,
    node_ends,
)
from planner.timeline import COLLECTIVE, SEND, Event, Timeline, concatenate, encode

__all__ = [
    "Bound",
    "Compiled",
    "StageBytes",
    "compile",
    "critical_path",
    "duration_vector",
    "makespan",
    "makespans",
    "neighbour_hops",
    "node_ends",
    "period",
    "periods",
    "schedule_of",
    "simulate",
    "simulate_plan",
]


def schedule_of(plan: Plan) -> Schedule:
    choice = plan.schedule
    return Schedule(
        family=choice.family,
        place=choice.place,
        pipe_of=choice.pipe_of,
        orders=parse_orders(choice.orders),
        settings=dict(choice.settings),
    )


def simulate_plan(plan: Plan, *, steps: int = 1) -> Timeline:
    """What a plan's own orders and durations amount to, one rank a pipeline worker."""
    compiled = compile(schedule_of(plan), plan.hops, update=plan.schedule.update)
    return simulate(compiled, duration_vector(plan.times, plan.hops), steps=steps)


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
    vector = np.asarray(durations, np.int64)
    releases: IntArray = np.zeros(compiled.graph.sources, np.int64)
    parts = []
    for step in range(steps):
        ends = node_ends(compiled, vector, releases)
        parts.append(_rows(compiled, ends, vector, step, releases))
        if memory:
            parts.append(_samples(compiled, ends, vector, step, memory, static_bytes))
        releases = ends[compiled.graph.tails]
        if compiled.update == "barrier":
            releases = np.full_like(releases, ends.max())
    return concatenate(parts)


def _rows(compiled: Compiled, ends: IntArray, vector: IntArray, step: int, releases: IntArray) -> Timeline:
    graph = compiled.graph
    took = np.append(vector, 0)[graph.cost]
    parts = []
    free = {queue[1]: releases[i] for i, queue in enumerate(graph.queues) if queue[0] == "worker"}
    for rank, (order, nodes) in enumerate(zip(compiled.schedule.orders, graph.actions, strict=True)):
        starts = ends[nodes] - took[nodes]
        before = np.concatenate([[free.get(rank, 0)], ends[nodes][:-1]]) if len(nodes) else starts
        codes = [encode(action) for action in order]
        parts.append(_part(step, rank, codes, starts, ends[nodes], starts - before))
    for message, node in zip(graph.messages, graph.message_nodes.tolist(), strict=True):
        rank = compiled.schedule.place[message.pipe][message.sender]
        code = encode(Event(SEND, message.sender, message.micro, message.pipe))
        parts.append(_part(step, rank, [code], ends[node] - took[node], ends[node], 0))
    for stage, node in graph.sync_nodes.items():
        for rank in sorted({pipe[stage] for pipe in compiled.schedule.place}):
            code = encode(Event(COLLECTIVE, stage))
            parts.append(_part(step, rank, [code], ends[node] - took[node], ends[node], 0))
    return concatenate(parts)


def _part(
    step: int, rank: int, codes: list[int], start: IntArray, end: IntArray, wait: IntArray | int
) -> Timeline:
    def column(value: IntArray | int) -> IntArray:
        return np.broadcast_to(np.asarray(value, np.int64), (len(codes),)).copy()

    return Timeline(
        step=column(step),
        rank=column(rank),
        code=np.array(codes, np.int64),
        start_ns=column(start),
        end_ns=column(end),
        wait_ns=column(wait),
    )


def _samples(
    compiled: Compiled,
    ends: IntArray,
    vector: IntArray,
    step: int,
    memory: Sequence[StageBytes],
    static_bytes: Sequence[int],
) -> Timeline:
    took = np.append(vector, 0)[compiled.graph.cost]
    parts = []
    for rank, nodes in enumerate(compiled.graph.actions):
        use = occupancy(compiled.schedule.orders[rank], memory)
        base = static_bytes[rank] if static_bytes else 0
        when = np.stack([ends[nodes] - took[nodes], ends[nodes]], axis=1).ravel()
        many = np.full(len(when), rank, np.int64)
        parts.append(
            Timeline(
                memory_step=np.full(len(when), step, np.int64),
                memory_rank=many,
                memory_ns=when,
                memory_bytes=base + use.ravel(),
            )
        )
    return concatenate(parts)
