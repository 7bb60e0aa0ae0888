"""The process that holds a local run: `python -P -m runtime.local_main FOLDER PARENT`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from planner import plan_yaml
from runtime import job as jobs
from runtime.paths import Paths
from runtime.supervise import die_with_parent, supervise
from runtime.train import train_rank


def main(folder: str, parent: str) -> int:
    die_with_parent(int(parent))
    paths = Paths(Path(folder))
    job = jobs.read(paths)
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    ranks = len(plan_yaml.load(paths.plan).places)
    outcome = supervise(paths, ranks, job.deadline_s, partial(train_rank, paths.root))
    return 0 if outcome.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
