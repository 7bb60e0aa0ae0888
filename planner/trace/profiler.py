"""Traces that torch.profiler wrote in ranks, moved to the clock of a run.

A rank marks a moment of its own clock in what it records, since torch.profiler counts from a start of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nextafter
from pathlib import Path

from planner.errors import BadInput
from planner.files import read_json
from planner.timeline import Timeline

CLOCK_MARK = (
    "shardwright clock {ns}"  # an event's name: the nanoseconds of the host's clock at which it begins
)
_MARK = re.compile(r"shardwright clock (\d+)")
_BESIDE = 1 << 30  # numbers of threads that no system gives
_MOST_BYTES = 512 * 2**20
_IDS_OF_A_RANK = 10**8  # arrows are joined by whole numbers, which those of a plan take from 1 on
_KINDS = frozenset("XBEbenisftMC")


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What torch.profiler recorded in one rank."""

    rank: int
    moved_ns: int  # from its times to the first rank's clock
    events: tuple[Mapping[str, object], ...]

    @property
    def pids(self) -> list[str]:
        """Returns its processes, as text since torch names some by words."""
        return sorted({str(each.get("pid", 0)) for each in self.events})

    @property
    def processes(self) -> int:
        """Returns how many numbers of processes it takes."""
        return len(self.pids)

    def moved(self, zero_ns: int, first: int) -> Iterator[dict[str, object]]:
        """Yields its events beside those of a run.

        Args: `zero_ns` is the moment of the first rank's clock that the trace calls 0; processes are numbered from `first` on.
        """
        number = {pid: first + at for at, pid in enumerate(self.pids)}
        flows = {flow: at for at, flow in enumerate(sorted({str(x["id"]) for x in self.events if "id" in x}))}
        beside = dict[tuple[int, str, int], int]()
        for each, lane in zip(self.events, _lanes(self.events), strict=True):
            process = number[str(each.get("pid", 0))]
            found = {**each, "pid": process}
            if lane:
                key = (process, str(each.get("tid", 0)), lane)
                if key not in beside:
                    beside[key] = _BESIDE + len(beside)
                    named = {"pid": process, "tid": beside[key], "args": {"name": f"beside {key[1]}"}}
                    yield {"ph": "M", "name": "thread_name", "ts": 0, **named}
                found["tid"] = beside[key]
            if "id" in each:
                found["id"] = (self.rank + 1) * _IDS_OF_A_RANK + flows[str(each["id"])]
            if each.get("ph") == "M":
                args = each.get("args")
                if each.get("name") == "process_name" and isinstance(args, dict):
                    found["args"] = {"name": f"torch.profiler, rank {self.rank}: {args.get('name', '')}"}
                yield {**found, "ts": 0}
            else:
                if "dur" in each:
                    found["dur"] = us(_ns(each, "dur"))
                yield {**found, "ts": us(_ns(each, "ts") + self.moved_ns - zero_ns)}


def _lanes(events: Sequence[Mapping[str, object]]) -> list[int]:
    """Returns a lane of its thread for each event: 0, or another where it overlaps what began before it, as sums do."""
    lanes, open_until = [0] * len(events), dict[tuple[str, str], list[list[int]]]()
    spans = {
        at: (start := _ns(each, "ts"), start + _ns(each, "dur"))
        for at, each in enumerate(events)
        if each.get("ph") == "X"
    }
    for at in sorted(spans, key=lambda at: (spans[at][0], -spans[at][1])):
        start, end = spans[at]
        stacks = open_until.setdefault((str(events[at].get("pid")), str(events[at].get("tid"))), [])
        for stack in stacks:
            while stack and stack[-1] <= start:
                stack.pop()
        lane = next((i for i, x in enumerate(stacks) if not x or end <= x[-1]), len(stacks))
        stacks[lane:lane] = [[]] if lane == len(stacks) else []
        stacks[lane].append(end)
        lanes[at] = lane
    return lanes


def us(ns: int) -> float:
    """Returns microseconds that are the same nanoseconds again for a reader that cuts decimals off.

    A slice that ends a nanosecond after the slice around it is one that Perfetto leaves out.
    """
    found = ns / 1e3
    return found if int(found * 1e3) == ns else nextafter(found, inf if ns > 0 else -inf)


def _ns(event: Mapping[str, object], name: str) -> int:
    found = event.get(name, 0)
    return round(found * 1e3) if isinstance(found, int | float) and isfinite(found) else 0


def read_rank_trace(path: Path, run: Timeline) -> RankTrace:
    """Reads what torch.profiler wrote in one rank of a run.

    Args: `run` is the run's timeline, which says how the clocks of hosts differ.
    Raises: BadInput where the file is no such trace, says no rank, or holds no mark of the rank's clock.
    """
    raw = read_json(path, max_bytes=_MOST_BYTES)
    listed = raw.get("traceEvents") if isinstance(raw, dict) else None
    if not isinstance(listed, list):
        raise BadInput("is no trace of torch.profiler", where=str(path), allowed="JSON with traceEvents")
    events = [each for each in listed if isinstance(each, dict) and each.get("ph") in _KINDS]
    rank = _rank(raw, path)
    marks = [(_ns(each, "ts"), int(m[1])) for each in events if (m := _MARK.fullmatch(str(each.get("name"))))]
    if not marks:
        raise BadInput(
            "holds no mark of a run's clock, so it cannot be laid beside the run",
            where=str(path),
            allowed="what `launch --profile-step N` has ranks write",
        )
    at_ns, host_ns = min(marks, key=lambda mark: mark[0] - mark[1])  # the one that began at once
    offsets = dict(zip(run.clock_rank.tolist(), run.clock_offset_ns.tolist(), strict=True))
    return RankTrace(rank=rank, moved_ns=host_ns + offsets.get(rank, 0) - at_ns, events=tuple(events))


def _rank(raw: Mapping[str, object], path: Path) -> int:
    told = raw.get("distributedInfo")
    if isinstance(told, dict) and isinstance(told.get("rank"), int):
        return int(told["rank"])
    found = re.search(r"rank-?_?(\d+)", path.name)
    if found is None:
        raise BadInput(
            "does not say of which rank it is", where=str(path), allowed="a name such as rank0.json"
        )
    return int(found[1])
