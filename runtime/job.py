"""What a launcher tells its ranks beside the plan: one JSON file in the run folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from planner.errors import BadInput
from runtime.paths import Paths
from runtime.words import say

Content = Literal["layers", "sleep"]


@dataclass(frozen=True, kw_only=True)
class Job:
    steps: int  # of the whole run; a resumed one does those that are missing
    seed: int = 0
    content: Content = "layers"  # sleep: stages sleep for their planned times
    weights: str = ""  # safetensors to begin with; build()'s own when empty
    clip_norm: float | None = None
    save_every: int = 0  # steps; 0 saves at the end only
    keep: int = 2  # complete checkpoints
    threads: int = 1  # of each rank
    memory_step: int = 0  # the step whose peak of memory is measured, slowly; 0 for none
    data_workers: int = 0  # processes that load samples, a rank that reads any
    device: Literal["cpu", "cuda"] = "cpu"
    deadline_s: float = 60.0  # without any progress of a rank
    script: tuple[str, ...] = ()  # a user's own, with its arguments, instead of the workload's training
    restarts: int = 0  # times that a run which fails goes on from its last complete checkpoint by itself
    generation: int = 0  # counts restarts, so that the rendezvous of one is never met by another

    def write(self, paths: Paths) -> None:
        say(paths, paths.job, json.dumps(asdict(self), indent=1))


def read(paths: Paths) -> Job:
    try:
        job = Job(**json.loads(paths.job.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"is no run folder: {error}", where=str(paths.root)) from error
    return replace(job, script=tuple(job.script))
