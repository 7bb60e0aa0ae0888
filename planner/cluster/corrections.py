"""What runs have shown the cost model to get wrong on a cluster: corrections of planned times, kept apart from them.

Every kind of time that a plan has is corrected alike, `start + factor * planned`; what a run's own noise and the
fit leave unexplained is stated beside it. Nothing here is measured by itself: it stands for the runs it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from planner import files
from planner.files import Count, Natural, NotNegative, Part, Positive, Text
from planner.schedule import Kind

FITTED_VERSION: Final = 1
PARTS: Final[Mapping[Kind, str]] = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input_grad",
    Kind.W: "weight_grad",
    Kind.R: "forward",
    Kind.STEP: "update",
}


class Correction(Part):
    """Of one kind of time: what it takes is about `start_s + factor * planned`."""

    start_s: NotNegative = 0.0
    factor: Positive = 1.0
    spread: NotNegative = 0.0  # half the distance of the quartiles of measured / corrected
    samples: Count = Field(description="stages and messages of runs, each a mean over its steps")

    def seconds(self, planned_s: float) -> float:
        return self.start_s + self.factor * planned_s


class MemoryCorrection(Part):
    """Of a device's peak: it holds about `start_bytes + factor * predicted`, and up to `spread` of that more."""

    start_bytes: Natural = 0
    factor: Positive = 1.0
    spread: NotNegative = 0.0
    samples: Count = Field(description="runs whose memory was measured")

    def room_bytes(self, capacity_bytes: int) -> int:
        """The largest prediction that fits."""
        return max(0, floor((capacity_bytes / (1 + self.spread) - self.start_bytes) / self.factor))


class Corrections(Part):
    version: Literal[1] = FITTED_VERSION
    content: Literal["layers", "sleep"] = "layers"  # what the stages of those runs did
    forward: Correction | None = None
    backward: Correction | None = None
    input_grad: Correction | None = None
    weight_grad: Correction | None = None
    update: Correction | None = None
    hop: Correction | None = None
    sum: Correction | None = None
    memory: MemoryCorrection | None = None
    step_spread: NotNegative = Field(
        description="of a step's time, relative: the error that is left, by runs left out where there are three"
    )
    rests_on: tuple[Text, ...] = Field(min_length=1, description="the runs, in words")

    def of(self, kind: Kind) -> Correction | None:
        """Of a computing action or an update; sums and messages have corrections of their own."""
        found = getattr(self, PARTS[kind]) if kind in PARTS else None
        assert found is None or isinstance(found, Correction)
        return found

    @property
    def summary(self) -> str:
        count = len(self.rests_on)
        return f"{count} run{'s' if count > 1 else ''} ({'; '.join(dict.fromkeys(self.rests_on))})"


def load_corrections(path: Path | str) -> Corrections:
    return files.load(Corrections, Path(path), version=FITTED_VERSION)


def dump_corrections(fitted: Corrections) -> str:
    header = "# From `shardwright calibrate`: corrections fitted to runs, apart from what was measured by itself.\n"
    return files.render(fitted.model_dump(mode="json", exclude_none=True), header=header)
