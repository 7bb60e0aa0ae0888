"""How far a profile is and how long it will take: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN_LINES = 10.0


class Report:
    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title, self._stream = title, stream or sys.stderr
        self._begun = self._spoken = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Report:
        if self._stream.isatty():
            self._bar = _bar(self._stream)
            self._bar.start()
            self._bar.add_task(self._title, total=1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, share: float) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share)
        elif time.monotonic() - self._spoken > SECONDS_BETWEEN_LINES:
            self._spoken = time.monotonic()
            print(self.line(share, self._spoken - self._begun), file=self._stream, flush=True)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def line(self, share: float, spent_s: float) -> str:
        left = f", about {spent_s * (1 - share) / share:.0f} s left" if share > 0 else ""
        return f"{self._title}: {share:.0%}{left}"


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=stream),
    )
