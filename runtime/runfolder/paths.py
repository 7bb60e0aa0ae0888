"""Every file of a run by its name, so that no file name is put together anywhere else."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUNS = "runs"
EARLIER = "before-"  # begins the name of what was cut off a log
MOST_LOG_BYTES, KEPT_LOG_BYTES = 64 * 2**20, 4 * 2**20
LOG_LOOK_S = 5.0
FOLDERS = ("logs", "causes", "traces", "metrics", "checkpoints", "tasks")  # inside of every run folder


@dataclass(frozen=True, slots=True)
class Paths:
    """The files of one run folder."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.yaml"

    @property
    def job(self) -> Path:
        """Returns the file of settings that the launcher gives to the ranks beside the plan."""
        return self.root / "job.json"

    @property
    def captured(self) -> Path:
        """Returns the file with the captured model, for processes of this launch; its tensors are in `constants`."""
        return self.root / "captured.json"

    @property
    def constants(self) -> Path:
        return self.root / "constants.safetensors"

    @property
    def islands(self) -> Path:
        """Returns the file that makes the folder one that islands share."""
        return self.root / "islands.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def kept(self) -> Path:
        """Returns the masks of pruned weights, where the run has any."""
        return self.root / "kept.safetensors"

    @property
    def samples(self) -> Path:
        """Returns the index of the samples to train on, where the run has one."""
        return self.root / "samples.npy"

    @property
    def heartbeat(self) -> Path:
        return self.root / "heartbeat"

    @property
    def pids(self) -> Path:
        """Returns the file with the process of every rank of a local run."""
        return self.root / "pids.json"

    @property
    def holder(self) -> Path:
        """Returns the file with the supervisor process of a local run."""
        return self.root / "holder.json"

    @property
    def report(self) -> Path:
        """Returns the report page for a browser."""
        return self.root / "report.html"

    @property
    def outcome(self) -> Path:
        """Returns the file that says how the run ended, with the first cause where it failed."""
        return self.root / "outcome.json"

    @property
    def reserve(self) -> Path:
        """Returns the file that is deleted to make room when the disk is full."""
        return self.root / "reserve"

    @property
    def trace(self) -> Path:
        """Returns the Timeline of all ranks."""
        return self.root / "trace.npz"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """Returns the file of evaluations of a dataset, one a line."""
        return self.root / "evaluations.jsonl"

    @property
    def script(self) -> Path:
        """Returns the script that sbatch is given."""
        return self.root / "launch.sbatch"

    @property
    def slurm(self) -> Path:
        """Returns the file with the job that was queued for this run."""
        return self.root / "slurm.json"

    @property
    def turns(self) -> Path:
        """Returns the folder of locks, which say which of several SLURM jobs trains here."""
        return self.root / "turns"

    @property
    def launching(self) -> Path:
        """Returns the folder of locks, which say which of several launches prepares this folder."""
        return self.root / "launching"

    @property
    def folders(self) -> list[Path]:
        """Returns the inner folders that a run may write in."""
        return [*(self.root / name for name in FOLDERS), self.turns, self.launching, self.tensorboard]

    @property
    def hosts(self) -> Path:
        """Returns the file with the host of every rank, one a line. It exists where nodes have uneven numbers
        of ranks.
        """
        return self.root / "hosts"

    @property
    def attempts(self) -> Path:
        """Returns the file of attempts: when ranks were started, on which nodes, and how that ended."""
        return self.root / "attempts.jsonl"

    @property
    def profile(self) -> Path:
        """Returns the profile from which a plan for other nodes is made."""
        return self.root / "profile.yaml"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.yaml"

    @property
    def probed(self) -> Path:
        """Returns the file with the numbers that a probe has measured."""
        return self.root / "probe.json"

    @property
    def fixed(self) -> Path:
        """Returns the pins of a plan for other nodes: choices that its solver may not change."""
        return self.root / "fixed.json"

    @property
    def cancelled(self) -> Path:
        """Returns the mark of a run that a user has cancelled. Nothing is started again once it exists."""
        return self.root / "cancelled"

    def rendezvous(self, generation: int) -> Path:
        """Returns the file at which the ranks of one start meet.

        Args: `generation` counts the starts of a run, so that no two starts share the file.
        """
        return self.root / f"rendezvous-{generation}"

    def votes(self, generation: int) -> Path:
        """Returns the file in which ranks agree on the step to stop after.

        Args: `generation` counts the starts of a run.
        """
        return self.root / f"votes-{generation}"

    def failed(self, generation: int) -> Path:
        """Returns the mark that one rank under SLURM has ended badly.

        Args: `generation` counts the starts of a run.
        """
        return self.root / f"failed-{generation}"

    def task(self, rank: int) -> Path:
        """Returns the record of a rank under SLURM: where it runs or ran, and how it ended.

        Args: `rank` counts from 0.
        """
        return self.root / "tasks" / f"rank-{rank:05d}.json"

    def slurm_log(self, job: int) -> Path:
        return self.root / "logs" / f"slurm-{job}.out"

    def log(self, rank: int) -> Path:
        return self.root / "logs" / f"rank-{rank:05d}.log"

    def cause(self, rank: int) -> Path:
        """Returns the file in which a rank writes the exception that ends it.

        Args: `rank` counts from 0.
        """
        return self.root / "causes" / f"rank-{rank:05d}.json"

    def causes(self) -> list[Path]:
        return sorted((self.root / "causes").glob("*.json"))

    def rank_trace(self, rank: int) -> Path:
        return self.root / "traces" / f"rank-{rank:05d}.npz"

    def rank_profile(self, rank: int) -> Path:
        """Returns the file with what torch.profiler has recorded of a step."""
        return self.root / "profiles" / f"rank-{rank:05d}.json"

    def rank_metrics(self, rank: int) -> Path:
        return self.root / "metrics" / f"rank-{rank:05d}.jsonl"

    def rank_resident(self, rank: int) -> Path:
        """Returns the file with the memory that a rank's process held before its training, and at most."""
        return self.root / "metrics" / f"resident-{rank:05d}.json"

    def rank_store(self, rank: int) -> Path:
        """Returns the file with what a rank has read and received for the store of its node."""
        return self.root / "metrics" / f"store-{rank:05d}.json"

    def all_metrics(self) -> list[Path]:
        """Returns the metrics files of all ranks that the run ever had."""
        return sorted((self.root / "metrics").glob("*.jsonl"))

    def clear_marks(self, before: int) -> None:
        """Removes the files at which earlier starts met, voted and failed.

        Args: `before` is the first start whose files stay.
        """
        for path in self.root.glob("*-*"):
            name, _, number = path.name.rpartition("-")
            if name in ("rendezvous", "votes", "failed") and number.isdecimal() and int(number) < before:
                path.unlink(missing_ok=True)

    def bound_logs(self) -> None:
        """Cuts logs that have grown too long. Their last part is then beside them, under a name with `before`.

        Processes append to their logs, so that what they write meanwhile comes after the cut.
        """
        for path in (self.root / "logs").glob("*"):
            if not path.name.startswith(EARLIER):
                self.bound_log(path)

    def bound_log(self, path: Path) -> None:
        """Cuts one log where it has grown too long.

        Args: `path` need not exist.
        """
        with suppress(OSError):
            if path.stat().st_size > MOST_LOG_BYTES:
                with path.open("rb") as file:
                    file.seek(-KEPT_LOG_BYTES, 2)
                    path.with_name(EARLIER + path.name).write_bytes(file.read(KEPT_LOG_BYTES))
                os.truncate(path, 0)

    @property
    def killed(self) -> Path:
        """Returns the file with a line for each supervisor of a SLURM job that was killed."""
        return self.root / "killed"

    def make(self) -> Paths:
        """Makes the run folder and its inner folders.

        Returns: the same Paths.
        """
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        return self


def unused(name: str) -> Path:
    """Returns a folder name below `runs/` that no other run has.

    Args: `name` begins the folder name; the time of day follows.
    """
    stem = Path(RUNS) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (stem.with_name(f"{stem.name}-{number}") for number in range(2, 10**6))
    return stem if not stem.exists() else next(path for path in others if not path.exists())
