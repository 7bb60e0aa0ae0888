"""What a run came to, read from its folder: its result, its evaluations, a line each, and whether its steps keep to the
prediction of its plan.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import numpy as np

from planner.errors import BadInput, ShardwrightError
from planner.files import whole_lines
from planner.plan import Plan, awaited_ns
from planner.timeline import WARM_UP_STEPS, Timeline, concatenate
from planner.units import format_duration
from runtime.runfolder.durable import append
from runtime.runfolder.job import MOST_READERS, Job
from runtime.runfolder.metrics import JUDGED_STEPS, MOST_BYTES, losses_of
from runtime.runfolder.outcome import Outcome, removed
from runtime.runfolder.paths import Paths

NOTABLE_WAIT = 0.05  # of a step, for samples
MOST_EVENTS = 2_000_000  # in a gathered trace: about 100 MB


class RunFailed(ShardwrightError):
    """A rank raised, was killed or hung; names the first cause."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The losses and the timeline of a finished run, and how it ended."""

    state: str  # done | failed | hung | interrupted | ended
    losses: dict[int, float]  # by step, from 1
    timeline: Timeline
    folder: Path
    cause: str = ""
    rank: int | None = None  # the first that was not well
    status: int = 0  # of a launch that waits

    def check(self) -> Result:
        """Returns the same result where the run is done.

        Raises: RunFailed with the cause where the run ended in any other way.
        """
        if self.state != "done":
            raise RunFailed(self.cause)
        return self


def result_of(paths: Paths, ranks: int, outcome: Outcome) -> Result:
    """Collects the result of a run that has ended, and writes its trace and metrics.

    Args: `ranks` is the number of ranks that may have left a trace; `outcome` says how the run ended.
    Returns: losses by step, and the Timeline of all ranks.
    """
    newest, timeline = _newest(_parts(paths, ranks)), trace_of(paths, ranks)
    if len(timeline) and not _is_gathered(paths, newest):
        _write_trace(paths, timeline, newest)
    losses = losses_of(paths)
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()]
    if removed(paths) is None:
        paths.metrics.write_text("".join(lines))
    return Result(
        state=outcome.state,
        losses=losses,
        timeline=timeline,
        folder=paths.root,
        cause=outcome.cause,
        rank=outcome.rank,
        status=outcome.status,
    )


def trace_of(paths: Paths, ranks: int) -> Timeline:
    """Returns what ranks have recorded so far, wherever the run goes on or has ended.

    Nothing is written. Ranks leave their traces at checkpoints and at their end.
    Args: `ranks` is the number of ranks that may have left a trace.
    Returns: the Timeline of all ranks, empty where none has left any.
    Raises: BadInput where a file is no trace.
    """
    parts = _parts(paths, ranks)
    if _is_gathered(paths, _newest(parts)):
        return Timeline.load(paths.trace)
    found = gather(parts) if parts else Timeline()
    if not len(found) and paths.trace.exists():  # a run that was opened again, and took no step
        return Timeline.load(paths.trace)
    return found


def _write_trace(paths: Paths, timeline: Timeline, newest: int) -> None:
    """Writes a gathered trace whole. The supervisor of a job and who waits for it may do so at once, on two hosts."""
    host = socket.gethostname().replace(".", "-")
    part = paths.trace.with_name(
        f"{paths.trace.stem}.part-{host}-{threading.get_native_id()}{paths.trace.suffix}"
    )
    try:
        timeline.save(part)
        if newest:
            os.utime(part, ns=(newest, newest))
        part.rename(paths.trace)
    finally:
        part.unlink(missing_ok=True)


def _is_gathered(paths: Paths, newest: int) -> bool:
    """Returns whether the gathered trace holds the newest trace of a rank, or there is no other."""
    return paths.trace.exists() and newest in (0, paths.trace.stat().st_mtime_ns)


def _parts(paths: Paths, ranks: int) -> list[Path]:
    return [path for rank in range(ranks) if (path := paths.rank_trace(rank)).exists()]


def _newest(parts: Sequence[Path]) -> int:
    """Returns the time of the newest trace of a rank, 0 without any.

    A gathered trace has the same time. Which of the two is later is not asked, since clocks are set back.
    """
    return max((path.stat().st_mtime_ns for path in parts), default=0)


def gather(parts: Sequence[Path]) -> Timeline:
    """Returns one Timeline of several ranks, with the last steps where there are too many events.

    Times are those of the first rank's clock already. A rank that was ended before it left a trace has one of an
    earlier start of the run, which does not count.
    Args: `parts` are the traces of ranks.
    """
    most = MOST_EVENTS // len(parts)
    found = [_latest(Timeline.load(path), most) for path in parts]
    started = [max(part.clock_start.tolist(), default=0) for part in found]
    kept = [part for part, start in zip(found, started, strict=True) if start == max(started) and len(part)]
    if not kept:
        return Timeline()
    first = max(int(part.step.min()) for part in kept)
    return concatenate([part.since(first) for part in kept])


def _latest(part: Timeline, most: int) -> Timeline:
    """Returns the last whole steps of a trace that have at most so many events."""
    if len(part) <= most:
        return part
    return part.since(int(np.sort(part.step)[-most]) + 1)


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


def outside_bars(
    plan: Plan, measured_ns: float, workers: int = 0, *, run: str = "RUN", busy: bool = False
) -> str:
    """Says that steps are outside the error bars of their plan.

    Args: `measured_ns` is the median of recent steps; `workers` are the readers of a rank. `run` is the folder of the
        run, and with `busy` its machine had other work.
    Returns: one sentence; empty where the steps are within the bars, or the plan has none.
    """
    step = plan.prediction
    high_ns = step.high_ns + awaited_ns(plan, workers) - step.step_ns
    if step.low_ns == step.high_ns or step.low_ns <= measured_ns <= high_ns:
        return ""
    rests = f"the corrections of {plan.fitted.summary}" if plan.fitted else "the profile alone"
    advice = (
        "run it again when the machine is idle before you believe either"
        if busy
        else f"`--replan-from {run}` behind the command that made the plan makes one for what this run took"
    )
    return (
        f"steps take {format_duration(measured_ns)}, outside the predicted {format_duration(step.low_ns)} to "
        f"{format_duration(high_ns)}, which rest on {rests}; {advice}"
    )


def readers_of(job: Job) -> int:
    """Returns the readers of a rank by which a run is judged.

    Args: `job` may leave their number to each rank, which then takes as many as hide reading.
    """
    return MOST_READERS if job.data_workers is None else job.data_workers


def waiting(steps: Collection[tuple[float, float]]) -> str:
    """Says that a rank has waited for its samples; empty where it has hardly.

    Args: `steps` are durations of steps, each with the part that was waited, in seconds.
    """
    took_s, waited_s = (median(row[i] for row in steps) if steps else 0.0 for i in (0, 1))
    if waited_s <= NOTABLE_WAIT * took_s:
        return ""
    return (
        f"ranks wait for samples {format_duration(waited_s * 1e9)} of {format_duration(took_s * 1e9)} a step "
        f"({waited_s / took_s:.0%}); more readers (--data-workers auto) or samples in memory (--store ram) shorten it"
    )


def usual_s(seconds: Sequence[float], waits: Collection[tuple[float, float]]) -> float:
    """Returns what steps take: their median, and their mean where ranks wait for samples.

    Several readers deliver at about the same time, so that one step waits long and the next ones hardly.
    Args: `seconds` are of steps after the warm-up, one at least; `waits` are durations with the part that was waited.
    """
    return fmean(seconds) if waiting(waits) else median(seconds)


@dataclass
class DriftWatch:
    """A watch over the steps of a running rank. It says once that they have left the error bars, or wait for samples."""

    plan: Plan
    workers: int = 0  # readers of a rank
    seen: int = 0
    said: bool = False
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=JUDGED_STEPS))

    def step(self, seconds: float, waited_s: float = 0.0) -> str:
        """Takes note of one step.

        Args: `seconds` is the step's duration, of which the rank waited `waited_s` for samples.
        Returns: what is to be said the first time that there is something, else an empty text.
        """
        self.seen += 1
        if self.seen > WARM_UP_STEPS:
            self.latest.append((seconds, waited_s))
        if self.said or len(self.latest) < JUDGED_STEPS:
            return ""
        measured_ns = usual_s([took_s for took_s, _ in self.latest], self.latest) * 1e9
        found = (waiting(self.latest), outside_bars(self.plan, measured_ns, self.workers))
        self.said = any(found)
        return "; ".join(said for said in found if said)
