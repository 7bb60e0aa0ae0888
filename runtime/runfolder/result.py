"""The result of a finished run, read from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from planner.errors import ShardwrightError
from planner.timeline import Timeline, concatenate
from runtime.runfolder.metrics import losses_of
from runtime.runfolder.outcome import Outcome
from runtime.runfolder.paths import Paths


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
    traces = [path for rank in range(ranks) if (path := paths.rank_trace(rank)).exists()]
    timeline = gather(traces) if traces else Timeline()
    if traces:
        timeline.save(paths.trace)
    losses = losses_of(paths)
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()]
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


def gather(parts: list[Path]) -> Timeline:
    """Returns one Timeline of several ranks.

    Args: `parts` are traces of ranks on one host, whose clocks agree.
    """
    return concatenate([Timeline.load(path) for path in parts])
