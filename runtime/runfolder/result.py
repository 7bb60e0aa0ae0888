"""The result of a finished run, read from its folder.

The evaluations of a run, a line each.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.errors import BadInput, ShardwrightError
from planner.files import whole_lines
from planner.timeline import Timeline, concatenate
from runtime.runfolder.durable import append
from runtime.runfolder.metrics import MOST_BYTES, losses_of
from runtime.runfolder.outcome import Outcome, removed
from runtime.runfolder.paths import Paths

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
    return gather(parts) if parts else Timeline()


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
