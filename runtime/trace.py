"""Records every action of a rank: start, end and how long it waited, in nanoseconds of this host's clock."""

from __future__ import annotations

from pathlib import Path
from time import monotonic_ns

import numpy as np

from planner.timeline import MEMORY_COLUMNS, Timeline, concatenate, from_events

clock_ns = monotonic_ns


class Tracer:
    """`rows` takes (step, rank, code, start, end, wait); appending one costs less than a microsecond."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []  # step, rank, time, bytes

    def add(self, step: int, code: int, start_ns: int, end_ns: int, wait_ns: int = 0) -> None:
        self.rows.append((step, self.rank, code, start_ns, end_ns, wait_ns))

    def sample_memory(self, step: int, in_use_bytes: int) -> None:
        """The peak of a step."""
        self.memory.append((step, self.rank, clock_ns(), in_use_bytes))

    def timeline(self) -> Timeline:
        table = np.array(self.memory, np.int64).reshape(-1, len(MEMORY_COLUMNS))
        samples = Timeline(**{name: table[:, i] for i, name in enumerate(MEMORY_COLUMNS)})
        return concatenate([from_events(self.rows), samples])


def gather(parts: list[Path]) -> Timeline:
    """Of ranks on one host, whose clocks agree."""
    return concatenate([Timeline.load(path) for path in parts])
