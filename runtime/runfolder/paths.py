"""Every file of a run by one name, so that no file name is put together anywhere else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Paths:
    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.yaml"

    @property
    def job(self) -> Path:
        """What the launcher tells the ranks beside the plan."""
        return self.root / "job.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat"

    @property
    def pids(self) -> Path:
        """Process of every rank of a local run."""
        return self.root / "pids.json"

    @property
    def holder(self) -> Path:
        """The process that holds a local run."""
        return self.root / "holder.json"

    @property
    def report(self) -> Path:
        """The page for a browser."""
        return self.root / "report.html"

    @property
    def outcome(self) -> Path:
        """How the run ended, with the first cause where it failed."""
        return self.root / "outcome.json"

    @property
    def reserve(self) -> Path:
        """Room on the disk, for words when it is full."""
        return self.root / "reserve"

    @property
    def trace(self) -> Path:
        """The Timeline of all ranks."""
        return self.root / "trace.npz"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def script(self) -> Path:
        """For sbatch."""
        return self.root / "launch.sbatch"

    @property
    def slurm(self) -> Path:
        """The job that was queued for this run."""
        return self.root / "slurm.json"

    @property
    def turns(self) -> Path:
        """Which job trains here, of those that SLURM has started for this run."""
        return self.root / "turns"

    @property
    def hosts(self) -> Path:
        """The host of every rank, one a line, where nodes have uneven numbers of them."""
        return self.root / "hosts"

    @property
    def attempts(self) -> Path:
        """When ranks were started under SLURM, where, and how that ended: one line each."""
        return self.root / "attempts.jsonl"

    @property
    def profile(self) -> Path:
        """What a plan for other nodes is made from."""
        return self.root / "profile.yaml"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.yaml"

    @property
    def probed(self) -> Path:
        """What a probe has measured."""
        return self.root / "probe.json"

    @property
    def fixed(self) -> Path:
        """What a plan for other nodes may not decide."""
        return self.root / "fixed.json"

    @property
    def cancelled(self) -> Path:
        """Exists when a user has said so; nothing is started again after that."""
        return self.root / "cancelled"

    def rendezvous(self, generation: int) -> Path:
        return self.root / f"rendezvous-{generation}"

    def votes(self, generation: int) -> Path:
        """Where ranks agree on the step to stop after."""
        return self.root / f"votes-{generation}"

    def failed(self, generation: int) -> Path:
        """Exists as soon as one rank under SLURM has ended badly."""
        return self.root / f"failed-{generation}"

    def task(self, rank: int) -> Path:
        """Where a rank under SLURM runs or ran, and how it ended."""
        return self.root / "tasks" / f"rank-{rank:05d}.json"

    def slurm_log(self, job: int) -> Path:
        return self.root / "logs" / f"slurm-{job}.out"

    def log(self, rank: int) -> Path:
        return self.root / "logs" / f"rank-{rank:05d}.log"

    def cause(self, rank: int) -> Path:
        """Written by a rank that ends in an exception."""
        return self.root / "causes" / f"rank-{rank:05d}.json"

    def causes(self) -> list[Path]:
        return sorted((self.root / "causes").glob("*.json"))

    def rank_trace(self, rank: int) -> Path:
        return self.root / "traces" / f"rank-{rank:05d}.npz"

    def rank_metrics(self, rank: int) -> Path:
        return self.root / "metrics" / f"rank-{rank:05d}.jsonl"

    def all_metrics(self) -> list[Path]:
        """Of all ranks that there ever were."""
        return sorted((self.root / "metrics").glob("*.jsonl"))

    def make(self) -> Paths:
        for folder in ("logs", "causes", "traces", "metrics", "checkpoints", "tasks"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)  # ranks meet at files in it
        return self


def unused(name: str) -> Path:
    """A folder for a new run, that no other run has."""
    stem = Path(RUNS) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (stem.with_name(f"{stem.name}-{number}") for number in range(2, 10**6))
    return stem if not stem.exists() else next(path for path in others if not path.exists())
