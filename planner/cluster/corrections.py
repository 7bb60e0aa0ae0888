"""Corrections of planned times and memory by what runs have shown, kept apart from the measured costs.

Every kind of time that a plan has is corrected alike, `start + factor * planned`; what a run's own noise and the
fit leave unexplained is stated beside it. Nothing here is measured by itself: it stands for the runs it names. Lines
through what was planned and what was measured are here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, sqrt
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Annotated, Final, Literal, NamedTuple

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


Factor = Annotated[float, Field(gt=0, le=1e6, strict=True)]
Spread = Annotated[float, Field(ge=0, le=1e6, strict=True)]
Start = Annotated[float, Field(ge=0, le=3600, strict=True)]  # of an action; an hour is no start


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


class Sample(NamedTuple):
    """One stage's action, update or sum, one hop, or one peak of a run: as planned, and the mean of what was
    measured.
    """

    planned: float
    measured: float


def line_through(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    """Returns the start and the factor of the line `measured = start + factor * planned`; neither is negative.

    Relative errors count, so that small sizes are heard.

    Args: `proportional` puts what goes beyond the plan into the factor where sizes are too alike to tell.
    """
    sizes = [s.planned for s in samples if s.planned > 0]
    if len(sizes) < 3 or max(sizes) < 2 * min(sizes):
        return _by_the_middle(samples, proportional)
    weights = [1 / max(s.measured, 1.0) ** 2 for s in samples]
    total = sum(weights)
    x = sum(w * s.planned for w, s in zip(weights, samples, strict=True)) / total
    y = sum(w * s.measured for w, s in zip(weights, samples, strict=True)) / total
    over = sum(w * (s.planned - x) * (s.measured - y) for w, s in zip(weights, samples, strict=True))
    slope = over / sum(w * (s.planned - x) ** 2 for w, s in zip(weights, samples, strict=True))
    if slope <= 0 or y - slope * x < 0:
        return _by_the_middle(samples, proportional)
    return y - slope * x, slope


def _by_the_middle(samples: Sequence[Sample], proportional: bool) -> tuple[float, float]:
    beyond = median(s.measured - s.planned for s in samples)
    if beyond >= 0 and not proportional:
        return beyond, 1.0
    return 0.0, max(1e-3, median([s.measured / s.planned for s in samples if s.planned] or [1.0]))


def correction_by(samples: Sequence[Sample], *, proportional: bool = False) -> Correction | None:
    """Returns the correction `measured = start + factor * planned`. Where sizes are too alike to tell the two
    apart, what goes beyond the plan is the start, or the factor if `proportional`.
    """
    if not samples:
        return None
    start, factor = line_through(samples, proportional)
    ratios = [s.measured / fitted for s in samples if (fitted := start + factor * s.planned) > 0]
    return rounded(start, factor, half_range(ratios), len(samples))


def rounded(start_ns: float, factor: float, spread: float, samples: int) -> Correction:
    """Returns a correction with as many digits as its samples tell."""
    return Correction(
        start_s=round(max(start_ns, 0.0)) * 1e-9,
        factor=float(f"{factor:.4g}"),
        spread=float(f"{spread:.3g}"),
        samples=samples,
    )


def half_range(values: Sequence[float]) -> float:
    """Returns half the distance between the quartiles of values in any order; 0 for fewer than two.

    Args: `values` are in any unit.
    """
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


# Of Student's distribution: what 5 % lie beyond on one side, by degrees of freedom from 3 on.
_STUDENT: Final = (2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)


def nine_of_ten(errors: Sequence[float], plans: int) -> float:
    """Returns the error that nine plans of ten stay below which were in no run, by the errors of plans left out.

    From ten plans on, that is what nine of ten errors stay below. The worst of fewer plans says too little of the next
    one: their errors count as drawn from a normal distribution around none, of which the next one is drawn as well.

    Args: `errors` are not negative, of one or more runs of each plan; of up to two plans, none was left out.
    """
    most = errors[0] if len(errors) == 1 else quantiles(errors, n=10, method="inclusive")[-1]
    if not 3 <= plans < 3 + len(_STUDENT):
        return most
    middle = sqrt(fmean(x * x for x in errors))
    return max(most, _STUDENT[plans - 3] * sqrt(1 + 1 / plans) * middle)
