"""A plan's timelines as trace events for ui.perfetto.dev and chrome://tracing.

Each rank of each timeline is a process. Its threads are what it computes, its gradient sums, and as many lanes of
messages as travel at a time. A message is a flow from its SEND, or from the action that made it, to the action that
takes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count
from typing import NamedTuple

from planner.plan import Hop, Plan, ranks_of_worker, schedule_of
from planner.schedule import Kind, Message
from planner.simulate import compile
from planner.timeline import COLLECTIVE, SEND, Event, Timeline, decode
from planner.trace.profiler import RankTrace, us

TraceEvent = dict[str, object]

_COMPUTE_LANE, _SUM_LANE, _MESSAGE_LANE = (
    1,
    2,
    3,
)  # Perfetto takes a thread 0 for the process's own, another lane
_FIRST_PROCESS = 1  # for the same reason
_OF_A_STAGE = (Kind.SYNC, Kind.STEP, COLLECTIVE)  # and of no micro-batch


class TraceSlice(NamedTuple):
    """One event of a timeline where it is drawn; times are nanoseconds from the first start on."""

    event: Event
    step: int
    rank: int
    lane: int
    start: int
    end: int
    waited: int


def perfetto(plan: Plan, timelines: Mapping[str, Timeline], profiled: Sequence[RankTrace] = ()) -> str:
    """Writes timelines of a plan as one trace, each beginning at its own first start.

    Args: `timelines` have a name each, such as "predicted", and ranks either of one replica's workers or of the whole
      mesh. `profiled` are torch.profiler's events, moved to the clock of the first timeline.
    Returns: JSON in the trace event format.
    """
    messages, flows = _messages_of(plan), count(1)
    events: list[TraceEvent] = []
    apart = 1 + max((int(each.rank.max()) for each in timelines.values() if len(each)), default=0)
    for at, (name, timeline) in enumerate(timelines.items()):
        slices = list(_slices(timeline))
        sent = _sent(slices, messages)
        first = _FIRST_PROCESS + at * apart
        events += _names(name, slices, first)
        events += (_drawn(each, first, messages.hops, sent.get(row)) for row, each in enumerate(slices))
        events += _arrows(plan, slices, messages, sent, first, flows)
        events += _memory(timeline, first)
    zero_ns = next((_zero(timeline) for timeline in timelines.values()), 0)
    after = _FIRST_PROCESS + len(timelines) * apart
    for each in profiled:
        events += each.moved(zero_ns, after)
        after += each.processes
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _zero(timeline: Timeline) -> int:
    return int(timeline.start_ns.min()) if len(timeline) else 0


class _Messages(NamedTuple):
    """The messages of a step in the order of their graph, and what each hop carries."""

    every: tuple[Message, ...]
    hops: Mapping[tuple[str, int, int], Hop]  # by direction, sender, receiver


def _messages_of(plan: Plan) -> _Messages:
    every = compile(schedule_of(plan), plan.hops, update=plan.schedule.update).graph.messages
    return _Messages(every, {(hop.direction, hop.sender, hop.receiver): hop for hop in plan.hops})


def _slices(timeline: Timeline) -> Iterator[TraceSlice]:
    """Yields every event with its lane, in the order of the timeline. No two of a lane overlap, as the format demands."""
    zero = _zero(timeline)
    columns = (
        timeline.step, timeline.rank, timeline.code, timeline.start_ns, timeline.end_ns, timeline.wait_ns,
    )  # fmt: skip
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    lanes = [_COMPUTE_LANE] * len(rows)
    busy: dict[tuple[int, bool], list[int]] = {}  # until when each lane of a rank is taken
    for at in sorted(range(len(rows)), key=lambda at: rows[at][3:5]):
        _, rank, code, start, end, _ = rows[at]
        name = decode(code).name
        mark = (
            name == Kind.SYNC.value and start == end
        )  # beside what begins at its moment, Perfetto draws it within
        if mark or name in (SEND, COLLECTIVE):
            ends = busy.setdefault((rank, name == SEND), [])
            lane = next((i for i, taken in enumerate(ends) if taken <= start), len(ends))
            ends[lane:] = [end, *ends[lane + 1 :]]
            lanes[at] = 2 * lane + (_MESSAGE_LANE if name == SEND else _SUM_LANE)
    for (step, rank, code, start, end, waited), lane in zip(rows, lanes, strict=True):
        yield TraceSlice(decode(code), step, rank, lane, start - zero, end - zero, waited)


def _sent(slices: Sequence[TraceSlice], messages: _Messages) -> dict[int, Message]:
    """Returns the message of each SEND. Those of one name stand in a timeline in the order of the graph."""
    by_name: dict[tuple[int, int, int], list[Message]] = {}
    for message in messages.every:
        by_name.setdefault((message.sender, message.micro, message.pipe), []).append(message)
    seen: Counter[tuple[int, int, Event]] = Counter()
    found = {}
    for row, each in enumerate(slices):
        if each.event.name == SEND:
            named = by_name.get(each.event[1:], [])
            before = seen[each.step, each.rank, each.event]
            seen[each.step, each.rank, each.event] += 1
            if before < len(named):
                found[row] = named[before]
    return found


def _names(name: str, slices: Sequence[TraceSlice], first: int) -> Iterator[TraceEvent]:
    for rank in sorted({each.rank for each in slices}):
        pid = first + rank
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{name}, rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    for rank, lane in sorted({(each.rank, each.lane) for each in slices}):
        told = "compute" if lane == _COMPUTE_LANE else "messages" if lane % 2 else "gradient sums"
        yield {"ph": "M", "name": "thread_name", "pid": first + rank, "tid": lane, "args": {"name": told}}


def _drawn(
    each: TraceSlice, first: int, hops: Mapping[tuple[str, int, int], Hop], message: Message | None
) -> TraceEvent:
    event = each.event
    args: dict[str, object] = {"step": each.step, "stage": event.stage}
    if event.name not in _OF_A_STAGE:
        args |= {"micro_batch": event.micro, "pipe": event.pipe}
    if message is not None:
        hop = hops[message.direction, message.sender, message.receiver]
        args |= {"to_stage": message.receiver, "bytes": hop.bytes, "values": len(hop.values)}
    if each.waited:
        args["waited_us"] = each.waited / 1e3
    return {
        "ph": "X", "name": str(event), "cat": event.name, "pid": first + each.rank, "tid": each.lane,
        "ts": us(each.start), "dur": us(each.end - each.start), "args": args,
    }  # fmt: skip


def _arrows(
    plan: Plan,
    slices: Sequence[TraceSlice],
    messages: _Messages,
    sent: Mapping[int, Message],
    first: int,
    flows: Iterator[int],
) -> Iterator[TraceEvent]:
    """Yields both ends of every message: its SEND, or the action that made it, and the action that takes it."""
    place = plan.schedule.place
    at = {(each.step, each.rank, each.event): each for each in slices}
    wires = {(slices[row].step, slices[row].rank, message): slices[row] for row, message in sent.items()}
    steps = sorted({each.step for each in slices})
    for group in _groups(plan, {each.rank for each in slices}):
        for step in steps:
            for message in messages.every:
                source = group[place[message.pipe][message.sender]]
                target = group[place[message.pipe][message.receiver]]
                made = _action(at, step, source, message, message.sender)
                taken = _action(at, step, target, message, message.receiver)
                wire = wires.get((step, source, message))
                start = wire if wire is not None and wire.end > wire.start else made
                if start is not None and taken is not None:
                    flow = next(flows)
                    yield {**_END, "ph": "s", "id": flow, **_where(start, first)}
                    yield {**_END, "ph": "f", "bp": "e", "id": flow, **_where(taken, first)}


_END: TraceEvent = {"name": "message", "cat": "message"}


def _where(each: TraceSlice, first: int) -> TraceEvent:
    """Returns the middle of a slice, at which an arrow can mean no other."""
    return {"pid": first + each.rank, "tid": each.lane, "ts": us((each.start + each.end) // 2)}


def _action(
    at: Mapping[tuple[int, int, Event], TraceSlice], step: int, rank: int, message: Message, stage: int
) -> TraceSlice | None:
    """Returns the action of a stage that makes or takes a message, None where it is not in the timeline."""
    kinds = (Kind.F,) if message.direction == "act" else (Kind.B, Kind.I)
    events = (Event(kind.value, stage, message.micro, message.pipe) for kind in kinds)
    return next((found for event in events if (found := at.get((step, rank, event))) is not None), None)


def _groups(plan: Plan, ranks: Set[int]) -> list[tuple[int, ...]]:
    """Returns the rank of each worker, once for each replica and shard that has ranks here."""
    workers = range(plan.axes.pipeline)
    if ranks <= set(workers):
        return [tuple(workers)]
    every = zip(*(ranks_of_worker(plan.axes, worker) for worker in workers), strict=True)
    return [group for group in every if ranks & set(group)]


def _memory(timeline: Timeline, first: int) -> Iterator[TraceEvent]:
    zero = _zero(timeline)
    columns = (timeline.memory_rank, timeline.memory_ns, timeline.memory_bytes)
    for rank, ns, size in zip(*(column.tolist() for column in columns), strict=True):
        at = {"pid": first + rank, "ts": us(ns - zero)}
        yield {"ph": "C", "name": "memory", **at, "args": {"bytes": size}}
