"""Writes the steps of a run for TensorBoard where it is installed: `tensorboard --logdir RUN/tensorboard`.

One rank writes for all ranks. The others' numbers are read from their metrics now and then, so no step waits
for them.
"""

from __future__ import annotations

import time
from typing import Protocol

from runtime.runfolder import MetricLines, Paths

EVERY_S = 5.0


class ScalarWriter(Protocol):
    """The calls of TensorBoard's SummaryWriter that are used here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def close(self) -> None: ...


class Board:
    """A writer of TensorBoard events that follows the metrics of all ranks."""

    def __init__(self, writer: ScalarWriter, lines: MetricLines, *, generation: int, samples: int) -> None:
        self._writer, self._lines = writer, lines
        self._generation, self._samples = generation, samples
        self._next_s = 0.0
        self._last = 0  # ranks that share samples tell of a step one after the other

    def look(self) -> None:
        """Writes the steps that all ranks have recorded, unless it did so in the last seconds."""
        if time.monotonic() >= self._next_s:
            self._write()
            self._next_s = time.monotonic() + EVERY_S

    def close(self) -> None:
        """Writes the last steps and closes the files."""
        self._write()
        self._writer.close()

    def _write(self) -> None:
        for generation, step, row in sorted(self._lines.complete(), key=lambda told: told[:2]):
            if generation == self._generation and step > self._last:
                self._last = step
                self._writer.add_scalar("loss", row.loss, step)
                self._writer.add_scalar("step_seconds", row.seconds, step)
                self._writer.add_scalar("samples_per_second", self._samples / row.seconds, step)


def board(paths: Paths, *, first: int, generation: int, samples: int) -> Board | None:
    """Returns a writer for TensorBoard, None where it is not installed.

    Args: `first` is the first step to come; older entries of it and later steps are dropped. `samples` is of
      one step.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    writer: ScalarWriter = SummaryWriter(
        str(paths.tensorboard), purge_step=first if first > 1 else None, flush_secs=round(EVERY_S)
    )
    return Board(writer, MetricLines(paths), generation=generation, samples=samples)
