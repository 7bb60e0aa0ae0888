"""The difference between a predicted and a measured timeline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import NamedTuple

import numpy as np

from planner.arrays import IntArray
from planner.shown import Shown
from planner.timeline.timeline import (
    _CODES_A_NAME,
    _MICRO,
    _NEVER,
    _ROW,
    BUSY,
    COLLECTIVE,
    Timeline,
    decode,
)
from planner.units import format_duration

COMPARED = ("stage and action", "times a step", "measured", "predicted", "ratio", "a step longer by")


class Difference(NamedTuple):
    """One kind of event on one stage: mean durations over ranks, micro-batches and steps."""

    name: str
    stage: int
    predicted_ns: float
    measured_ns: float
    times: int  # measured events
    a_step: float  # how often a rank does it in a step, of the ranks that do

    @property
    def longer_ns(self) -> float:
        """Returns by how much longer a rank was at it in a step than predicted; less than 0 where it was shorter."""
        return (self.measured_ns - self.predicted_ns) * self.a_step

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
    measured_idle_ns: (
        float  # of a step: the mean over ranks of all time outside of their actions; sums are none
    )
    measured_between_ns: float = (
        0.0  # from the end of a step to the start of the next: data, metrics, checkpoints
    )
    predicted_idle_ns: float = 0.0  # as measured_idle_ns

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
                "a_step": round(event.a_step, 3),
                "longer_ns": round(event.longer_ns, 1),
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
    ours, theirs, ranks = _means(predicted), _means(measured), _ranks(measured)
    shared = [key for key in ours if key in theirs]
    return Comparison(
        events=tuple(
            Difference(*key, ours[key][0], *theirs[key], theirs[key][1] / (len(steps) * ranks[key]))
            for key in shared
        ),
        missing=tuple(f"{stage}{name}" for name, stage in ours if (name, stage) not in theirs),
        extra=tuple(f"{stage}{name}" for name, stage in theirs if (name, stage) not in ours),
        predicted_step_ns=_step_ns(predicted),
        measured_step_ns=_step_ns(measured),
        measured_idle_ns=_idle_ns(measured),
        measured_between_ns=_between_ns(measured),
        predicted_idle_ns=_idle_ns(predicted),
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


def _ranks(timeline: Timeline) -> dict[tuple[str, int], int]:
    """Returns how many ranks have each kind of event of each stage."""
    found: dict[tuple[str, int], set[int]] = {}
    pairs = np.unique(np.stack([timeline.code // _MICRO, timeline.rank]), axis=1)
    for code, rank in pairs.T.tolist():
        event = decode(code * _MICRO)
        found.setdefault((event.name, event.stage), set()).add(rank)
    return {key: len(own) for key, own in found.items()}


def _step_ns(timeline: Timeline) -> float:
    """Returns the length of a step: the median from first start to last end, or end to end where sums reach into the
    next step.
    """
    if not len(timeline):
        return 0.0
    _, last, rolling = _edges(timeline)
    if rolling:
        return int(last[-1] - last[0]) / (len(last) - 1)
    return float(np.median(list(timeline.step_lengths().values())))


def _edges(timeline: Timeline) -> tuple[IntArray, IntArray, bool]:
    """Returns the first start and the last end of every step but for its gradient sums, and whether these reach into
    the next step.
    """
    numbers, at = np.unique(timeline.step, return_inverse=True)
    sums = timeline.code // _CODES_A_NAME == _ROW[COLLECTIVE]
    sum_ends, ends = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    starts = np.full(len(numbers), _NEVER)
    np.maximum.at(sum_ends, at[sums], timeline.end_ns[sums])
    np.maximum.at(ends, at[~sums], timeline.end_ns[~sums])
    np.minimum.at(starts, at[~sums], timeline.start_ns[~sums])
    return starts, ends, bool((sum_ends[:-1] > starts[1:]).any())


def _idle_ns(timeline: Timeline) -> float:
    """Returns how long a rank does nothing in a step, as the mean over ranks and the median over steps."""
    if not len(timeline):
        return 0.0
    numbers, at = np.unique(timeline.step, return_inverse=True)
    busy = np.isin(timeline.code // _CODES_A_NAME, [_ROW[name] for name in BUSY])
    worked = np.bincount(at, np.where(busy, timeline.end_ns - timeline.start_ns, 0), len(numbers))
    took = worked / len(set(timeline.rank.tolist()))
    if _edges(timeline)[2]:
        return max(0.0, _step_ns(timeline) - float(took.mean()))
    lengths = np.array([length for _, length in sorted(timeline.step_lengths().items())])
    return max(0.0, float(np.median(lengths - took)))


def _between_ns(timeline: Timeline) -> float:
    """Returns the median time from the last end of a step to the first start of the next one; 0 where they overlap."""
    if not len(timeline):
        return 0.0
    starts, ends, _ = _edges(timeline)
    return max(0.0, float(np.median(starts[1:] - ends[:-1]))) if len(starts) > 1 else 0.0


def in_words(found: Comparison) -> str:
    """Returns a comparison of whole steps as one sentence, measured first.

    Args: `found` is what `compare` has returned.
    """
    between = found.measured_between_ns
    rest = f"; {format_duration(between)} passed from one step to the next" if between else ""
    idle = f"{format_duration(round(found.measured_idle_ns))} of it, {format_duration(round(found.predicted_idle_ns))} predicted"
    return (
        f"step: measured {format_duration(found.measured_step_ns)}, predicted {format_duration(found.predicted_step_ns)}, "
        f"ratio {found.ratio:.2f}; a rank waited or summed gradients for {idle}{rest}"
    )


def compared_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Returns the rows of a table with the heads COMPARED, first what made steps longer than predicted by most.

    Args: `found` is what `compare` has returned.
    """
    return [
        (
            f"{event.stage}{event.name}",
            f"{event.a_step:g}",
            format_duration(event.measured_ns),
            format_duration(event.predicted_ns),
            f"{event.ratio:.2f}",
            format_duration(round(event.longer_ns)),
        )
        for event in sorted(found.predicted_events, key=lambda event: -event.longer_ns)
    ]


def concatenate(parts: Sequence[Timeline]) -> Timeline:
    """Joins timelines row by row, in the order given.

    Args: `parts` is at least one timeline.
    """
    return Timeline(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Timeline)})


def converting_ns(timeline: Timeline, steps: Collection[int]) -> dict[tuple[str, int], float]:
    """Returns how long an action was busy with conversions, by its name and stage: the mean over ranks and some steps.

    Args: `timeline` is measured.
    """
    chosen = np.isin(timeline.conversion_step, list(steps))
    found: dict[tuple[str, int], list[int]] = {}
    columns = (timeline.conversion_code[chosen].tolist(), timeline.conversion_ns[chosen].tolist())
    for code, ns in zip(*columns, strict=True):
        event = decode(code)
        found.setdefault((event.name, event.stage), []).append(ns)
    return {key: fmean(values) for key, values in found.items()}
