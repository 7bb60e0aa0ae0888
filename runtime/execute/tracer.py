"""Records every action of a rank: start, end and how long it waited, in nanoseconds of this host's clock."""

from __future__ import annotations

from pathlib import Path
from time import monotonic_ns

import numpy as np

from planner.timeline import MEMORY_COLUMNS, Timeline, concatenate, from_events

clock_ns = monotonic_ns
MOST_ROWS = 200_000  # about 50 MB; a long run keeps its latest steps


class Tracer:
    """The record of one rank: `rows` takes (step, rank, code, start, end, wait).

    Appending a row costs less than a microsecond.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []  # step, rank, time, bytes

    def add(self, step: int, code: int, start_ns: int, end_ns: int, wait_ns: int = 0) -> None:
        """Records one action.

        Args: `code` is the action as `planner.timeline.encode` gives it; `wait_ns` is the time waited since
            the action before.
        """
        self.rows.append((step, self.rank, code, start_ns, end_ns, wait_ns))

    def trim(self) -> None:
        """Lets go of the oldest steps where there are too many rows; called between steps."""
        if len(self.rows) > MOST_ROWS:
            first_kept = self.rows[len(self.rows) // 2][0]
            self.rows = [row for row in self.rows if row[0] >= first_kept]

    def sample_memory(self, step: int, in_use_bytes: int) -> None:
        """Records the peak of a step.

        Args: `in_use_bytes` is the peak on this rank.
        """
        self.memory.append((step, self.rank, clock_ns(), in_use_bytes))

    def timeline(self) -> Timeline:
        """Returns everything recorded as a Timeline, in nanoseconds of this host's clock."""
        table = np.array(self.memory, np.int64).reshape(-1, len(MEMORY_COLUMNS))
        samples = Timeline(**{name: table[:, i] for i, name in enumerate(MEMORY_COLUMNS)})
        return concatenate([from_events(self.rows), samples])

    def save(self, path: Path) -> None:
        """Writes the timeline whole or not at all, since a rank may be ended at any moment.

        Args: `path` ends in .npz.
        """
        part = path.with_name(f"{path.stem}.part{path.suffix}")
        self.timeline().save(part)
        part.rename(path)
