"""Corrections of planned times and memory by what runs have shown, kept apart from the measured costs.

Every kind of time that a plan has is corrected alike, `start + factor * planned`; what a run's own noise and the
fit leave unexplained is stated beside it. Nothing here is measured by itself: it stands for the runs it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from planner import files
from planner.files import Count, Natural, Part, Text
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


MOST_TIMES: Final = 1e6  # that a correction may say, of factors and spreads
LONGEST_START_S: Final = 3600  # of an action; an hour is no start
Factor = Annotated[float, Field(gt=0, le=MOST_TIMES, strict=True)]
Spread = Annotated[float, Field(ge=0, le=MOST_TIMES, strict=True)]
Start = Annotated[float, Field(ge=0, le=LONGEST_START_S, strict=True)]


class Correction(Part):
    """The correction of one kind of time: it takes about `start_s + factor * planned`."""

    start_s: Start = 0.0
    factor: Factor = 1.0
    spread: Spread = 0.0  # half the distance of the quartiles of measured / corrected
    samples: Count = Field(description="stages and messages of runs, each a mean over its steps")

    def seconds(self, planned_s: float) -> float:
        """Returns the corrected time in seconds.

        Args: `planned_s` is the planned time in seconds.
        """
        return self.start_s + self.factor * planned_s


class MemoryCorrection(Part):
    """The correction of a device's peak: about `start_bytes + factor * predicted`, and up to `spread` of that more."""

    start_bytes: Natural = 0
    factor: Factor = 1.0
    spread: Spread = 0.0
    samples: Count = Field(description="runs whose memory was measured")

    def room_bytes(self, capacity_bytes: int) -> int:
        """Returns the largest predicted peak that fits a device.

        Args: `capacity_bytes` is the memory of the device.
        """
        return max(0, floor((capacity_bytes / (1 + self.spread) - self.start_bytes) / self.factor))


class Corrections(Part):
    """The corrections that runs on a cluster have taught, one for each kind of time, and one for memory."""

    version: Literal[1] = FITTED_VERSION
    content: Literal["layers", "sleep"] = "layers"  # what the stages of those runs did
    forward: Correction | None = None
    backward: Correction | None = None
    input_grad: Correction | None = None
    weight_grad: Correction | None = None
    update: Correction | None = None
    hop: Correction | None = None
    sum: Correction | None = None
    conversion: Correction | None = None  # its factor alone counts
    groups: tuple[tuple[Count, ...], ...] | None = Field(
        None, description="the meshes of the groups whose conversions were measured"
    )
    memory: MemoryCorrection | None = None
    step_spread: Spread = Field(
        description="of a step's time, relative: the error that is left, by runs left out where there are three"
    )
    rests_on: tuple[Text, ...] = Field(min_length=1, description="the runs, in words")

    def of(self, kind: Kind) -> Correction | None:
        """Returns the correction of a computing action or of an update.

        Args: `kind` is the action's; sums and messages have `sum` and `hop` instead.
        Returns: None where runs have taught nothing of that kind.
        """
        found = getattr(self, PARTS[kind]) if kind in PARTS else None
        assert found is None or isinstance(found, Correction)
        return found

    @property
    def summary(self) -> str:
        """Returns how many runs the corrections rest on, and which, in words."""
        count = len(self.rests_on)
        return f"{count} run{'s' if count > 1 else ''} ({'; '.join(dict.fromkeys(self.rests_on))})"


def load_corrections(path: Path | str) -> Corrections:
    """Returns the corrections that a file of `shardwright calibrate` holds.

    Raises: BadInput with file, line and key.
    """
    return files.load(Corrections, Path(path), version=FITTED_VERSION)


def dump_corrections(fitted: Corrections) -> str:
    """Returns corrections as the YAML text of a file.

    Returns: text that `load_corrections` reads back.
    """
    header = "# From `shardwright calibrate`: corrections fitted to runs, apart from what was measured by itself.\n"
    return files.render(fitted.model_dump(mode="json", exclude_none=True), header=header)
