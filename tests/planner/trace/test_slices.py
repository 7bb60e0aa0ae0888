"""Traces as Perfetto takes them: a small importer follows the rules of its reader of JSON and counts what arrives."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from planner.plan import Plan, ranks_of_worker, schedule_of, world_size
from planner.simulate import compile, simulate_plan
from planner.timeline import SEND, Timeline, decode
from planner.trace import perfetto
from tests.planner import plan_examples, report_cases

CASES = report_cases.cases()


@dataclass
class Imported:
    """What is left of a trace once it is read: slices by thread, arrows between slices, and what was refused."""

    slices: list[dict[str, Any]] = field(default_factory=list)
    arrows: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    counters: list[int] = field(default_factory=list)


def ns(us: float) -> int:
    return int(us * 1000)  # as the reader does: decimals are cut off


def imported(text: str) -> Imported:
    """As ui.perfetto.dev reads it: in order of time, a stack of open slices a thread, flows bound to what is open."""
    found = Imported()
    stacks: dict[tuple[int, int], list[tuple[int, dict[str, Any]]]] = {}
    begun: dict[object, dict[str, Any]] = {}
    events = json.loads(text)["traceEvents"]
    found.counters = [e["args"]["bytes"] for e in events if e["ph"] == "C"]
    found.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for event in sorted((e for e in events if e["ph"] in "Xsf"), key=lambda e: ns(e["ts"])):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        now = ns(event["ts"])
        while stack and stack[-1][0] <= now:
            stack.pop()
        if event["ph"] == "X":
            end = now + ns(event["dur"])
            if stack:
                found.refused.append(f"{event['name']} overlaps {stack[-1][1]['name']}")
            stack.append((end, event))
            found.slices.append(event)
        elif not stack:
            found.refused.append(f"flow {event['id']} binds to nothing")
        elif event["ph"] == "s":
            begun[event["id"]] = stack[-1][1]
        else:
            assert event["bp"] == "e"
            found.arrows.append((begun.pop(event["id"]), stack[-1][1]))
    found.refused += [f"flow {each} never ends" for each in begun]
    return found


def messages(plan: Plan) -> int:
    return len(compile(schedule_of(plan), plan.hops, update=plan.schedule.update).graph.messages)


@pytest.mark.parametrize("name", CASES)
def test_every_event_is_a_slice_and_every_message_an_arrow(name: str) -> None:
    plan, timeline = CASES[name], simulate_plan(CASES[name])
    found = imported(perfetto(plan, {"predicted": timeline}))
    assert found.refused == []
    assert Counter(e["cat"] for e in found.slices) == Counter(e.name for e in timeline.events())
    assert len(found.arrows) == messages(plan) > 0
    assert {(e["pid"], e["tid"]) for e in found.slices} == set(found.names)
    assert set(found.names.values()) >= {"compute", "messages"}
    for start, end in found.arrows:
        assert start["cat"] == SEND and start["args"]["to_stage"] == end["args"]["stage"]
        assert start["args"]["micro_batch"] == end["args"]["micro_batch"]
        assert start["args"]["bytes"] > 0
        assert ns(start["ts"]) + ns(start["dur"]) <= ns(end["ts"])


def test_a_slice_is_at_its_microsecond_and_says_what_it_is() -> None:
    plan = CASES["chimera"]
    found = imported(perfetto(plan, {"predicted": simulate_plan(plan)}))
    first = next(e for e in found.slices if e["name"] == "1F0")
    assert first["args"] == {"step": 0, "stage": 1, "micro_batch": 0, "pipe": 0} | (
        {"waited_us": first["args"]["waited_us"]} if "waited_us" in first["args"] else {}
    )
    assert first["dur"] == pytest.approx(plan.times[1].forward_ns / 1e3)


def everywhere(plan: Plan, steps: int = 2) -> Timeline:
    """As if every rank had run it, without messages in its record, as ranks keep it."""
    one = simulate_plan(plan)
    kept = np.array([decode(code).name != SEND for code in one.code.tolist()])
    columns: dict[str, list[np.ndarray[Any, Any]]] = {
        name: [] for name in ("step", "rank", "code", "start_ns", "end_ns", "wait_ns")
    }
    for step in range(1, steps + 1):
        for worker in range(plan.axes.pipeline):
            own = kept & (one.rank == worker)
            for rank in ranks_of_worker(plan.axes, worker):
                rows = {name: getattr(one, name)[own] for name in columns}
                later = step * 10**9
                rows |= {"step": rows["step"] + step, "rank": rows["rank"] * 0 + rank}
                rows |= {"start_ns": rows["start_ns"] + later, "end_ns": rows["end_ns"] + later}
                for name, column in rows.items():
                    columns[name].append(column)
    return Timeline(**{name: np.concatenate(parts) for name, parts in columns.items()})


def test_the_arrows_of_a_run_join_the_actions_of_each_replica_and_step() -> None:
    plan = plan_examples.plan(data=2)
    run = everywhere(plan)
    found = imported(perfetto(plan, {"measured": run, "predicted": simulate_plan(plan)}))
    assert found.refused == []
    assert world_size(plan.axes) == 2 * plan.axes.pipeline
    assert len(found.arrows) == (2 * 2 + 1) * messages(plan)
    for start, end in found.arrows:
        assert start["args"]["step"] == end["args"]["step"]
        assert start["pid"] != end["pid"]


def test_a_timeline_of_nothing_is_a_trace_of_nothing() -> None:
    assert json.loads(perfetto(CASES["1f1b"], {"predicted": Timeline()}))["traceEvents"] == []
