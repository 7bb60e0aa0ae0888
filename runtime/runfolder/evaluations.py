"""The evaluations of a run, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import BadInput
from planner.files import whole_lines
from runtime.runfolder.durable import append
from runtime.runfolder.metrics import MOST_BYTES
from runtime.runfolder.paths import Paths


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation: the mean loss over all samples, and the metrics as sums over counts."""

    step: int
    samples: int
    values: Mapping[str, float]  # "loss", then the user's metrics
    best: bool = False  # of all so far

    def to_dict(self) -> dict[str, object]:
        """Returns the evaluation as one flat dictionary."""
        return {"step": self.step, "samples": self.samples, "best": self.best, **self.values}


def write_evaluation(paths: Paths, found: Evaluated, generation: int) -> None:
    """Adds an evaluation to the run folder."""
    append(paths.evaluations, json.dumps(found.to_dict() | {"generation": generation}))


def evaluations_of(paths: Paths) -> list[Evaluated]:
    """Returns the evaluations of a run by step; one that was done again counts as it was done last.

    Raises: BadInput where the file holds anything else.
    """
    found: dict[int, Evaluated] = {}
    for line in (
        whole_lines(paths.evaluations, start=0, max_bytes=MOST_BYTES) if paths.evaluations.exists() else ()
    ):
        try:
            row = json.loads(line)
            values = {
                str(k): float(x) for k, x in row.items() if k not in ("step", "samples", "best", "generation")
            }
            one = Evaluated(
                step=int(row["step"]), samples=int(row["samples"]), best=bool(row["best"]), values=values
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadInput(
                f"holds a line that is no evaluation: {error}", where=str(paths.evaluations)
            ) from error
        found[one.step] = one
    return [found[step] for step in sorted(found)]
