"""Traces that torch.profiler wrote in ranks, moved to the clock of a run.

A rank marks a moment of its own clock in what it records, since torch.profiler counts from a start of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.errors import BadInput
from planner.files import read_json
from planner.timeline import Timeline

CLOCK_MARK = (
    "shardwright clock {ns}"  # an event's name: the nanoseconds of the host's clock at which it begins
)
_MARK = re.compile(r"shardwright clock (\d+)")
_MOST_BYTES = 512 * 2**20
_KINDS = frozenset("XBEbenisftMC")


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What torch.profiler recorded in one rank."""

    rank: int
    moved_us: float  # from its times to microseconds of the first rank's clock
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
        for each in self.events:
            found = {**each, "pid": number[str(each.get("pid", 0))]}
            if "id" in each:
                found["id"] = f"r{self.rank}.{each['id']}"
            if each.get("ph") == "M":
                args = each.get("args")
                if each.get("name") == "process_name" and isinstance(args, dict):
                    found["args"] = {"name": f"torch.profiler, rank {self.rank}: {args.get('name', '')}"}
                yield {**found, "ts": 0}
            else:
                yield {**found, "ts": _number(each) + self.moved_us - zero_ns / 1e3}


def _number(event: Mapping[str, object]) -> float:
    found = event.get("ts", 0)
    return float(found) if isinstance(found, int | float) else 0.0


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
    marks = [(_number(each), int(m[1])) for each in events if (m := _MARK.fullmatch(str(each.get("name"))))]
    if not marks:
        raise BadInput(
            "holds no mark of a run's clock, so it cannot be laid beside the run",
            where=str(path),
            allowed="what `launch --profile-step N` has ranks write",
        )
    at_us, host_ns = min(marks, key=lambda mark: mark[0] - mark[1] / 1e3)  # the one that began at once
    offsets = dict(zip(run.clock_rank.tolist(), run.clock_offset_ns.tolist(), strict=True))
    return RankTrace(rank=rank, moved_us=(host_ns + offsets.get(rank, 0)) / 1e3 - at_us, events=tuple(events))


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
