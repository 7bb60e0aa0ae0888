"""Runs for the tests: launched with warm ranks, watched by their files, and hurt in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from planner.plan import Plan
from runtime.launch import Handle
from runtime.launch.handle import launch_slurm
from runtime.runfolder import Paths, outcome_of, steps_of
from runtime.slurm import Options
from runtime.slurm import rank_records as record
from runtime.slurm.rank_records import RankRecord
from tests.slurm.cluster import Cluster
from tests.slurm.plans import plan_over
from tests.slurm.warm import Warm

PATIENCE_S = 300.0  # on a machine that is busy with much else
PACED = "tests/slurm/workloads/paced.py"


@lru_cache(maxsize=8)
def paced_plan(ranks_a_node: int = 1, pace_s: float = 0.02, leaves: int = -1, data: int = 1) -> Plan:
    """Two pipeline stages; with one replica every sum has one order, so that losses are equal to the bit."""
    arguments = {"pace_s": str(pace_s), "leaves": str(leaves)}
    return plan_over(
        PACED, arguments=arguments, ranks_a_node=ranks_a_node, family="1f1b", workers=2, micros=2, data=data
    )


@dataclass(frozen=True)
class Gate:
    """Paced runs stand before it, in their seventh step, until something has happened to them."""

    path: Path

    def open(self) -> None:
        self.path.touch()


def launch(
    warm: Warm,
    plan: Plan,
    folder: Path,
    steps: int = 4,
    options: dict[str, object] | None = None,
    **job: object,
) -> Handle:
    chosen = Options(**({"python": str(warm.python)} | (options or {})))  # type: ignore[arg-type]
    return launch_slurm(plan, folder, steps=steps, options=chosen, **job)


def until(
    what: Callable[[], object], name: str, timeout_s: float = PATIENCE_S, run: Handle | None = None
) -> None:
    """Waits for something. Where a run is to do it, waits no longer than until the run has ended."""
    end = time.monotonic() + timeout_s
    while True:
        over = outcome_of(run.paths) if run is not None else None
        if what():
            return
        assert over is None, f"never: {name}, since the run has ended: {over}"
        assert time.monotonic() < end, f"never: {name}"
        time.sleep(0.05)


def until_step(run: Handle, step: int) -> None:
    until(lambda: max(steps_of(run.paths), default=0) >= step, f"step {step}", run=run)


def until_stopping(run: Handle) -> None:
    """Every rank was told to stop, and knows after which step."""
    logs = [run.paths.log(rank) for rank in range(run.ranks)]
    until(lambda: all("told to stop" in log.read_text() for log in logs), "all know where to stop", run=run)


def task(paths: Paths, rank: int) -> RankRecord:
    """The rank as it runs now."""
    import json

    found = RankRecord(**json.loads(paths.task(rank).read_text()))
    assert record.read(paths, rank, found.generation) == found
    return found


def shardwright(*words: str) -> str:
    """What the command says, in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "shardwright", *words],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hurt(cluster: Cluster, run: Handle, rank: int, number: signal.Signals) -> None:
    """A signal to one rank, by its number on its node."""
    found = task(run.paths, rank)
    node = cluster.first_process(int(found.host.removeprefix("n")))
    subprocess.run(
        ["nsenter", f"--target={node}", "--pid", "kill", f"-{int(number)}", str(found.pid)], check=True
    )
