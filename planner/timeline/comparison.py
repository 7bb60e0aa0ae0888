"""The difference between a predicted and a measured timeline."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from planner.shown import Shown
from planner.timeline.timeline import _CODES_A_NAME, _MICRO, _NEVER, _ROW, COLLECTIVE, Timeline, decode


class Difference(NamedTuple):
    """One kind of event on one stage: mean durations over ranks, micro-batches and steps."""

    name: str
    stage: int
    predicted_ns: float
    measured_ns: float
    times: int  # measured events

    @property
    def ratio(self) -> float:
        """Returns measured over predicted; infinite where nothing was predicted."""
        return self.measured_ns / self.predicted_ns if self.predicted_ns else float("inf")


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Shown):
    """The difference between a predicted and a measured timeline: by kind of event and stage, and for whole steps."""

    events: tuple[Difference, ...]  # those that both sides have
    missing: tuple[str, ...]  # predicted, not measured: name and stage
    extra: tuple[str, ...]
    predicted_step_ns: float
    measured_step_ns: float
    measured_wait_ns: float  # mean over ranks and steps of the time a rank stood idle

    @property
    def ratio(self) -> float:
        """Returns the measured over the predicted length of a step; infinite where nothing was predicted."""
        return self.measured_step_ns / self.predicted_step_ns if self.predicted_step_ns else float("inf")

    @property
    def predicted_events(self) -> list[Difference]:
        """Returns the kinds of event with a predicted duration, sorted by stage."""
        return sorted((e for e in self.events if e.predicted_ns), key=lambda e: (e.stage, e.name))

    def to_rows(self) -> list[dict[str, object]]:
        """Returns one dictionary a kind of event with a predicted duration, sorted by stage."""
        return [
            {
                "stage": event.stage,
                "action": event.name,
                "predicted_ns": event.predicted_ns,
                "measured_ns": event.measured_ns,
                "ratio": round(event.ratio, 3),
                "times": event.times,
            }
            for event in self.predicted_events
        ]

    def to_dict(self) -> dict[str, object]:
        """Returns all fields as plain data."""
        return asdict(self) | {"events": [event._asdict() for event in self.events]}


def compare(predicted: Timeline, measured: Timeline, *, skip_steps: int = 0) -> Comparison:
    """Compares two timelines event by event.

    Args: the first `skip_steps` steps of the measured timeline are warm-up and left out.
    Returns: mean durations by (event, stage), what only one side has, and the length of a step on both.
    """
    steps = sorted(set(measured.step.tolist()))[skip_steps:]
    measured = measured._pick(np.isin(measured.step, steps), np.isin(measured.memory_step, steps))
    ours, theirs = _means(predicted), _means(measured)
    shared = [key for key in ours if key in theirs]
    cells = max(1, len(steps) * len(set(measured.rank.tolist())))
    return Comparison(
        events=tuple(Difference(*key, ours[key][0], *theirs[key]) for key in shared),
        missing=tuple(f"{stage}{name}" for name, stage in ours if (name, stage) not in theirs),
        extra=tuple(f"{stage}{name}" for name, stage in theirs if (name, stage) not in ours),
        predicted_step_ns=_step_ns(predicted),
        measured_step_ns=_step_ns(measured),
        measured_wait_ns=float(measured.wait_ns.sum()) / cells,
    )


def _means(timeline: Timeline) -> dict[tuple[str, int], tuple[float, int]]:
    group, index = np.unique(timeline.code // _MICRO, return_inverse=True)
    total = np.bincount(index, timeline.end_ns - timeline.start_ns)
    count = np.bincount(index)
    sums: dict[tuple[str, int], tuple[float, int]] = {}
    for code, ns, n in zip(group.tolist(), total.tolist(), count.tolist(), strict=True):
        event = decode(code * _MICRO)
        before, times = sums.get((event.name, event.stage), (0.0, 0))
        sums[event.name, event.stage] = before + ns, times + n
    return {key: (ns / n, n) for key, (ns, n) in sums.items()}


def _step_ns(timeline: Timeline) -> float:
    """Returns the mean length of a step: first start to last end, or end to end where sums reach into the next step."""
    if not len(timeline):
        return 0.0
    numbers, at = np.unique(timeline.step, return_inverse=True)
    sums = timeline.code // _CODES_A_NAME == _ROW[COLLECTIVE]
    sum_ends, ends = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    starts = np.full(len(numbers), _NEVER)
    np.maximum.at(sum_ends, at[sums], timeline.end_ns[sums])
    np.maximum.at(ends, at[~sums], timeline.end_ns[~sums])
    np.minimum.at(starts, at[~sums], timeline.start_ns[~sums])
    if bool((sum_ends[:-1] > starts[1:]).any()):
        return int(ends[-1] - ends[0]) / (len(ends) - 1)
    return sum(timeline.step_lengths().values()) / len(numbers)
