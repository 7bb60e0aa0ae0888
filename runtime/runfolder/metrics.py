"""What ranks write of each step, put together: needs no torch, so that a run can be looked at at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from runtime.runfolder.paths import Paths

LOSS = "loss:0"
COUNT = "loss:1"

# Micro-batch over all replicas -> loss and, where it counts, its count.
Losses = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class StepMetrics:
    loss: float
    seconds: float  # of the slowest rank that has a share of the loss


def mean_loss(losses: Losses) -> float:
    """Of a whole step, summed in the order of the micro-batches, so that it is the same under every plan."""
    rows = [losses[micro] for micro in sorted(losses)]
    total = sum(row[LOSS] for row in rows)
    counts = [row[COUNT] for row in rows if COUNT in row]
    return total / sum(counts) if counts else total / len(rows)


def steps_of(paths: Paths) -> dict[int, StepMetrics]:
    """Every step that all who have a share of its loss have finished. A step that was done again, under another plan
    perhaps, counts as it was last."""
    found = {step: row for _, step, row in sorted(MetricLines(paths).complete(), key=lambda told: told[:2])}
    return dict(sorted(found.items()))


def losses_of(paths: Paths) -> dict[int, float]:
    return {step: found.loss for step, found in steps_of(paths).items()}


@dataclass
class _Try:
    micros: int
    losses: dict[int, dict[str, float]]
    seconds: float


class _Row(TypedDict):
    step: int
    generation: int
    micros: int
    seconds: float
    losses: dict[str, dict[str, float]]


class MetricLines:
    """What the ranks of a run have written, read as it comes."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._read: dict[Path, int] = {}  # bytes
        self._tries: dict[tuple[int, int], _Try] = {}  # by generation and step

    def complete(self) -> Iterator[tuple[int, int, StepMetrics]]:
        """Generation, step and what it was, of those that have become complete since the last time."""
        for path in self._paths.all_metrics():
            for row in self._rows(path):
                if row["losses"]:
                    self._add(row)
        for key in [key for key, one in self._tries.items() if len(one.losses) == one.micros]:
            one = self._tries.pop(key)
            yield *key, StepMetrics(mean_loss(one.losses), one.seconds)

    def _add(self, row: _Row) -> None:
        key = row["generation"], row["step"]
        one = self._tries.setdefault(key, _Try(row["micros"], {}, 0.0))
        one.losses.update({int(micro): losses for micro, losses in row["losses"].items()})
        one.seconds = max(one.seconds, row["seconds"])

    def _rows(self, path: Path) -> Iterator[_Row]:
        """A line that is being written is for the next time; one whose rank was ended in it counts as none."""
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            try:
                row: _Row = json.loads(line)
            except ValueError:
                continue
            yield row
