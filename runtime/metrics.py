"""What ranks write of each step, put together: needs no torch, so that a run can be looked at at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


def steps_of(paths: Paths, ranks: int) -> dict[int, Step]:
    """Every step that all who have a share of its loss have finished; a repeated step counts as it was last."""
    losses: dict[int, dict[int, dict[str, float]]] = {}
    seconds: dict[int, dict[int, float]] = {}
    for rank in range(ranks):
        for step, took, rows in _lines(paths.rank_metrics(rank)):
            if rows:
                losses.setdefault(step, {}).update({int(micro): row for micro, row in rows.items()})
                seconds.setdefault(step, {})[rank] = took
    whole = max((len(micros) for micros in losses.values()), default=0)
    return {
        step: Step(mean_loss(rows), max(seconds[step].values()))
        for step, rows in sorted(losses.items())
        if len(rows) == whole
    }


def losses_of(paths: Paths, ranks: int) -> dict[int, float]:
    return {step: found.loss for step, found in steps_of(paths, ranks).items()}


def _lines(path: Path) -> Iterator[tuple[int, float, dict[str, dict[str, float]]]]:
    """A line that was being written when its rank was ended counts as none."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        yield row["step"], row["seconds"], row["losses"]
