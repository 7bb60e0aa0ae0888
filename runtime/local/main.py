"""The supervisor process of a local run: `python -P -m runtime.local.main FOLDER PARENT`.

PARENT is the process whose end ends the run, or 0 for a detached run.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from planner import plan as plans
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.local.supervise import STATES, EndSignals, die_with_parent, supervise
from runtime.runfolder import Attempt, Job, Outcome, Paths, note_attempt, result_of, tell
from runtime.train import Model, run_script, sleep_rank, train_rank


def main(folder: str, parent: str) -> int:
    """Runs all attempts of a run and writes its outcome and result.

    Args: `parent` is the number of the process that launched the run, "0" where the run may outlive it.
    Returns: the exit status of the run.
    """
    told = EndSignals(int(parent))
    told.listen()
    if int(parent):
        die_with_parent(int(parent), signal.SIGTERM)
    paths = Paths(Path(folder))
    job, plan = runfolder.read(paths), plans.load(paths.plan)
    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    model = None if job.content == "sleep" else Model.of(plan)
    outcome = Outcome("failed")
    for attempt in range(job.restarts + 1):
        again = replace(job, generation=job.generation + attempt)
        again.write(paths)
        if model is not None:
            checkpoints.last_sound(paths.checkpoints, partial(print, flush=True))
        begun = Attempt(generation=again.generation, nodes=[socket.gethostname()], begin_s=time.time())
        note_attempt(paths, begun)
        ranks = rank_main(paths, again, plan, model)
        outcome = supervise(paths, len(plan.places), job.deadline_s, ranks, told)
        end = {"state": outcome.state, "cause": outcome.cause, "rank": outcome.rank}
        note_attempt(paths, replace(begun, end_s=time.time(), **end))  # type: ignore[arg-type]
        if outcome.state in ("done", *STATES.values()) or attempt == job.restarts:
            break
        print(f"{outcome.cause}; starting again from the last complete checkpoint", flush=True)
        checkpoints.remove_partial(paths.checkpoints)
    tell(paths, outcome)
    result_of(paths, len(plan.places), outcome)  # here, since nobody may wait for a run that is detached
    return outcome.status


def rank_main(paths: Paths, job: Job, plan: Plan, model: Model | None) -> Callable[[int], None]:
    """Returns the function that the process of a rank runs, given the rank.

    Args: `model` is None for a run whose stages sleep.
    """
    if model is None:
        return partial(sleep_rank, paths, job, plan)
    return partial(run_script if job.script else train_rank, paths, job, model)


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: taking a large model apart may last for seconds
