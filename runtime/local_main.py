"""The process that holds a local run: `python -P -m runtime.local_main FOLDER PARENT`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch

from planner import plan_yaml
from runtime import job as jobs
from runtime.paths import Paths
from runtime.supervise import die_with_parent, supervise
from runtime.train import Model, sleep_rank, train_rank


def main(folder: str, parent: str) -> int:
    die_with_parent(int(parent))
    paths = Paths(Path(folder))
    job, plan = jobs.read(paths), plan_yaml.load(paths.plan)
    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    if job.content == "sleep":
        rank_main = partial(sleep_rank, paths, job, plan)
    else:
        rank_main = partial(train_rank, paths, job, Model.of(plan))
    outcome = supervise(paths, len(plan.places), job.deadline_s, rank_main)
    return 0 if outcome.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
