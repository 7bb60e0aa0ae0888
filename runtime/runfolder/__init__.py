"""The folder of a run: every file by name, and what the processes of the run write in it.

In: the folder, as `Paths`. Out: `Job` (what ranks are told), `Outcome`, `Attempt` and causes (how it went),
steps with their losses, and the `Result` of a finished run. Files are written whole or not at all, on a full
disk too.
Start reading in `paths.py`, then `job.py` and `outcome.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from runtime.runfolder.claim import claimed
from runtime.runfolder.durable import append_step, keep_room, write_durably, write_whole
from runtime.runfolder.holder import (
    RunProcess,
    StopWatch,
    WatchClock,
    cancel,
    die_with_parent,
    find,
    is_stopped,
    last_number,
    note_process,
    numbered,
    of,
    release,
    take_number,
)
from runtime.runfolder.job import FILE, START_S, TORCHRUN, Job, check, read
from runtime.runfolder.metrics import (
    COUNT,
    JUDGED_STEPS,
    LOSS,
    Losses,
    MetricLines,
    Recent,
    StepMetrics,
    losses_of,
    mean_loss,
    recent,
    steps_of,
)
from runtime.runfolder.outcome import (
    BEAT,
    STOPPED,
    Attempt,
    Heartbeat,
    Outcome,
    attempts,
    in_vain,
    is_secondary,
    log_end,
    note_attempt,
    open_run,
    outcome_of,
    read_cause,
    removed,
    stands_at,
    tell,
    write_cause,
)
from runtime.runfolder.paths import LOG_LOOK_S, Paths, unused
from runtime.runfolder.result import (
    DriftWatch,
    Evaluated,
    evaluations_of,
    outside_bars,
    readers_of,
    usual_s,
    waiting,
    write_evaluation,
)

if TYPE_CHECKING:
    from runtime.runfolder.result import Result, result_of, trace_of

__all__ = [
    "BEAT",
    "COUNT",
    "FILE",
    "JUDGED_STEPS",
    "LOG_LOOK_S",
    "LOSS",
    "START_S",
    "STOPPED",
    "TORCHRUN",
    "Attempt",
    "DriftWatch",
    "Evaluated",
    "Heartbeat",
    "Job",
    "Losses",
    "MetricLines",
    "Outcome",
    "Paths",
    "Recent",
    "Result",
    "RunProcess",
    "StepMetrics",
    "StopWatch",
    "WatchClock",
    "append_step",
    "attempts",
    "cancel",
    "check",
    "claimed",
    "die_with_parent",
    "evaluations_of",
    "find",
    "in_vain",
    "is_secondary",
    "is_stopped",
    "keep_room",
    "last_number",
    "log_end",
    "losses_of",
    "mean_loss",
    "note_attempt",
    "note_process",
    "numbered",
    "of",
    "open_run",
    "outcome_of",
    "outside_bars",
    "read",
    "read_cause",
    "readers_of",
    "recent",
    "release",
    "removed",
    "result_of",
    "stands_at",
    "steps_of",
    "take_number",
    "tell",
    "trace_of",
    "unused",
    "usual_s",
    "waiting",
    "write_cause",
    "write_durably",
    "write_evaluation",
    "write_whole",
]

__getattr__ = later(
    __name__,
    {
        "result": (
            "Result",
            "result_of",
            "trace_of",
        ),
    },
)
