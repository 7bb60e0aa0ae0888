"""Records every action of a rank: start, end and how long it waited, in nanoseconds of this host's clock."""

from __future__ import annotations

from pathlib import Path
from time import monotonic_ns

import numpy as np

from planner.timeline import MEMORY_COLUMNS, Timeline, concatenate, from_events

clock_ns = monotonic_ns
MOST_ROWS = 200_000  # about 50 MB; a long run keeps its latest steps


class Tracer:
    """`rows` takes (step, rank, code, start, end, wait); appending one costs less than a microsecond."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []  # step, rank, time, bytes

    def add(self, step: int, code: int, start_ns: int, end_ns: int, wait_ns: int = 0) -> None:
        self.rows.append((step, self.rank, code, start_ns, end_ns, wait_ns))

    def trim(self) -> None:
        """Between steps: lets go of the oldest ones where there are too many."""
        if len(self.rows) > MOST_ROWS:
            first_kept = self.rows[len(self.rows) // 2][0]
            self.rows = [row for row in self.rows if row[0] >= first_kept]

    def sample_memory(self, step: int, in_use_bytes: int) -> None:
        """The peak of a step."""
        self.memory.append((step, self.rank, clock_ns(), in_use_bytes))

    def timeline(self) -> Timeline:
        table = np.array(self.memory, np.int64).reshape(-1, len(MEMORY_COLUMNS))
        samples = Timeline(**{name: table[:, i] for i, name in enumerate(MEMORY_COLUMNS)})
        return concatenate([from_events(self.rows), samples])

    def save(self, path: Path) -> None:
        """Whole or not at all; a rank may be ended at any moment."""
        part = path.with_name(f"{path.stem}.part{path.suffix}")
        self.timeline().save(part)
        part.rename(path)
