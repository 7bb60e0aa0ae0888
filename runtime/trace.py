"""Records every action of a rank: start, end and how long it waited, in nanoseconds of this host's clock."""

from __future__ import annotations

from pathlib import Path
from time import monotonic_ns

from planner.timeline import Timeline, concatenate, from_events


class Tracer:
    """`rows` takes (step, rank, code, start, end, wait); appending one costs less than a microsecond."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: list[tuple[int, int, int, int, int, int]] = []

    def add(self, step: int, code: int, start_ns: int, end_ns: int, wait_ns: int = 0) -> None:
        self.rows.append((step, self.rank, code, start_ns, end_ns, wait_ns))

    def timeline(self) -> Timeline:
        return from_events(self.rows)


def gather(parts: list[Path]) -> Timeline:
    """Of ranks on one host, whose clocks agree."""
    return concatenate([Timeline.load(path) for path in parts])


clock_ns = monotonic_ns
