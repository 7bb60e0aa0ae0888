"""Compares a rehearsal with its plan: times, memory, and the action that differs most."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from planner.plan import Plan, schedule_of
from planner.schedule import Kind
from planner.shown import Shown
from planner.simulate import Compiled, compile, duration_vector, period
from planner.terminal import columns
from planner.timeline import Event
from planner.units import format_bytes as size
from planner.units import format_duration

COLUMNS = {
    Kind.F: "forward_ns",
    Kind.B: "backward_ns",
    Kind.I: "input_grad_ns",
    Kind.W: "weight_grad_ns",
    Kind.R: "recompute_ns",
    Kind.STEP: "step_ns",
}


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """The times and the peak of memory of one rank that ran alone."""

    rank: int
    worker: int
    spatial: int
    peak_bytes: int
    kept_bytes: int  # of it: parameters, gradients, buffers, optimizer state
    took_ns: Mapping[Event, tuple[int, ...]]  # of every action, once a timed step


@dataclass(frozen=True, kw_only=True)
class Duration:
    """The time of one kind of action of a stage. `alone_ns` is the step if only this action took its
    rehearsed time.
    """

    stage: int
    kind: str
    predicted_ns: int
    rehearsed_ns: int
    spread_ns: int  # half the distance between the quartiles
    alone_ns: int


@dataclass(frozen=True, kw_only=True)
class RehearsedPeak:
    """The peak of the fullest rank of a pipeline worker. `predicted_bytes` is without the margin."""

    worker: int
    rank: int
    predicted_bytes: int
    margin_bytes: int
    limit_bytes: int
    rehearsed_bytes: int
    kept_bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Rehearsal(Shown):
    """A rehearsal beside its plan."""

    device: str
    ranks: tuple[int, ...]  # that were run; every other one does what one of these does
    predicted_step_ns: int
    rehearsed_step_ns: int
    durations: tuple[Duration, ...]
    peaks: tuple[RehearsedPeak, ...]

    @property
    def most_different(self) -> Duration | None:
        """Returns the action whose rehearsed time alone changes the step most, None where none does."""
        far = [each for each in self.durations if each.alone_ns != self.predicted_step_ns]
        return max(far, key=lambda each: abs(each.alone_ns - self.predicted_step_ns), default=None)

    @property
    def too_full(self) -> tuple[RehearsedPeak, ...]:
        """Returns the workers that took more memory than was planned for them with the margin."""
        return tuple(
            each for each in self.peaks if each.rehearsed_bytes > each.predicted_bytes + each.margin_bytes
        )

    def __repr__(self) -> str:
        return text(self)

    def to_rows(self) -> list[dict[str, object]]:
        """Returns a row for each kind of action of a stage."""
        return [asdict(each) for each in self.durations]

    def to_dict(self) -> dict[str, object]:
        return as_dict(self)


def compared(plan: Plan, device: str, runs: Sequence[Rehearsed]) -> Rehearsal:
    """Returns a rehearsal beside its plan.

    Args: `runs` are the measurements of all distinct ranks.
    """
    compiled = compile(schedule_of(plan), plan.hops, update=plan.schedule.update)
    took = _by_stage(runs)
    return Rehearsal(
        device=device,
        ranks=tuple(each.rank for each in runs),
        predicted_step_ns=_step_ns(compiled, plan, {}),
        rehearsed_step_ns=_step_ns(compiled, plan, {key: _median(rows) for key, rows in took.items()}),
        durations=tuple(_durations(compiled, plan, took)),
        peaks=tuple(_peaks(plan, runs)),
    )


_Took = Mapping[tuple[int, Kind], Sequence[int]]


def _by_stage(runs: Sequence[Rehearsed]) -> _Took:
    found: dict[tuple[int, Kind], list[int]] = {}
    for each in runs:
        for event, rows in each.took_ns.items():
            if event.name in COLUMNS:
                found.setdefault((event.stage, Kind(event.name)), []).extend(rows)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], list(Kind).index(item[0][1]))))


def _median(rows: Sequence[int]) -> int:
    return round(statistics.median(rows))


def _step_ns(compiled: Compiled, plan: Plan, took: Mapping[tuple[int, Kind], int]) -> int:
    times = list(plan.times)
    for (stage, kind), ns in took.items():
        times[stage] = times[stage].model_copy(update={COLUMNS[kind]: ns})
    return period(compiled, duration_vector(times, plan.hops)).period_ns


def _durations(compiled: Compiled, plan: Plan, took: _Took) -> Iterator[Duration]:
    for (stage, kind), rows in took.items():
        ns = _median(rows)
        quartiles = statistics.quantiles(rows, n=4) if len(rows) > 1 else [ns, ns, ns]
        yield Duration(
            stage=stage,
            kind=kind.value,
            predicted_ns=getattr(plan.times[stage], COLUMNS[kind]),
            rehearsed_ns=ns,
            spread_ns=round((quartiles[2] - quartiles[0]) / 2),
            alone_ns=_step_ns(compiled, plan, {(stage, kind): ns}),
        )


def _peaks(plan: Plan, runs: Sequence[Rehearsed]) -> Iterator[RehearsedPeak]:
    for worker, predicted in enumerate(plan.prediction.memory):
        fullest = max((run for run in runs if run.worker == worker), key=lambda run: run.peak_bytes)
        yield RehearsedPeak(
            worker=worker,
            rank=fullest.rank,
            predicted_bytes=predicted.total - predicted.margin,
            margin_bytes=predicted.margin,
            limit_bytes=predicted.limit,
            rehearsed_bytes=fullest.peak_bytes,
            kept_bytes=fullest.kept_bytes,
        )


def as_dict(found: Rehearsal) -> dict[str, object]:
    """Returns a rehearsal as a dictionary for JSON, in nanoseconds and bytes.

    Args: `found` is what `rehearse` has returned.
    """
    most = found.most_different
    return asdict(found) | {
        "most_different": None if most is None else asdict(most),
        "too_full": [each.worker for each in found.too_full],
    }


def text(found: Rehearsal) -> str:
    """Returns a rehearsal as text: a summary, times, memory, and warnings.

    Args: `found` is what `rehearse` has returned.
    """
    times = columns(
        [
            (
                f"{each.stage}{each.kind}",
                format_duration(each.predicted_ns),
                format_duration(each.rehearsed_ns),
                _ratio(each.rehearsed_ns, each.predicted_ns),
                format_duration(each.alone_ns - found.predicted_step_ns),
            )
            for each in found.durations
        ],
        ("stage and action", "predicted", "rehearsed", "ratio", "moves the step by"),
    )
    held = columns(
        [
            (
                each.worker,
                each.rank,
                size(each.predicted_bytes),
                size(each.rehearsed_bytes),
                _ratio(each.rehearsed_bytes, each.predicted_bytes),
                size(each.kept_bytes),
                size(each.margin_bytes),
            )
            for each in found.peaks
        ],
        ("worker", "rank", "predicted", "peak", "ratio", "of it kept", "margin"),
    )
    warnings = []
    for each in found.too_full:
        over = size(each.rehearsed_bytes - each.predicted_bytes - each.margin_bytes)
        warnings.append(f"worker {each.worker} takes {over} more than was planned for it with its margin")
    return "\n\n".join([_summary(found), times, held, *warnings])


def _summary(found: Rehearsal) -> str:
    step = (
        f"{len(found.ranks)} distinct rank{'s' * (len(found.ranks) > 1)} rehearsed on {found.device}. Step: predicted "
        f"{format_duration(found.predicted_step_ns)}, replayed from what was rehearsed {format_duration(found.rehearsed_step_ns)}, "
        f"ratio {_ratio(found.rehearsed_step_ns, found.predicted_step_ns)}; messages and sums as planned."
    )
    most = found.most_different
    if most is None:
        return step
    return (
        f"{step}\nWhat differs most: {most.kind} of stage {most.stage}, {format_duration(most.predicted_ns)} planned and "
        f"{format_duration(most.rehearsed_ns)} rehearsed; alone it makes the step {format_duration(most.alone_ns)}."
    )


def _ratio(a: int, b: int) -> str:
    return f"{a / b:.2f}" if b else "-"
