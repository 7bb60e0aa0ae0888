"""What ranks write of each step, put together: needs no torch, so that a run can be looked at at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from runtime.paths import Paths

LOSS = "loss:0"
COUNT = "loss:1"

# Micro-batch over all replicas -> loss and, where it counts, its count.
Losses = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Step:
    loss: float
    seconds: float  # of the slowest rank that has a share of the loss


def mean_loss(losses: Losses) -> float:
    """Of a whole step, summed in the order of the micro-batches, so that it is the same under every plan."""
    rows = [losses[micro] for micro in sorted(losses)]
    total = sum(row[LOSS] for row in rows)
    counts = [row[COUNT] for row in rows if COUNT in row]
    return total / sum(counts) if counts else total / len(rows)


def steps_of(paths: Paths) -> dict[int, Step]:
    """Every step that all who have a share of its loss have finished. A step that was done again, under another plan
    perhaps, counts as it was last."""
    tries: dict[int, dict[int, _Try]] = {}  # by generation, then step
    for path in paths.all_metrics():
        for row in _rows(path):
            if row["losses"]:
                new = _Try(row["micros"], {}, 0.0)
                one = tries.setdefault(row["generation"], {}).setdefault(row["step"], new)
                one.losses.update({int(micro): losses for micro, losses in row["losses"].items()})
                one.seconds = max(one.seconds, row["seconds"])
    found: dict[int, Step] = {}
    for _, steps in sorted(tries.items()):
        done = {step: one for step, one in steps.items() if len(one.losses) == one.micros}
        found |= {step: Step(mean_loss(one.losses), one.seconds) for step, one in done.items()}
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


def _rows(path: Path) -> Iterator[_Row]:
    """A line that was being written when its rank was ended counts as none."""
    for line in path.read_text().splitlines():
        try:
            row: _Row = json.loads(line)
        except ValueError:
            continue
        yield row
