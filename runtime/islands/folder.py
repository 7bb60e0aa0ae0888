"""The folder that islands share: what they train (`IslandsJob`), how far they are, and where everything lies.

    FOLDER/islands.json              how many shards, steps a round, and the step taken together
    FOLDER/plan.yaml, job.json       what each of them runs
    FOLDER/checkpoints/step-...      versions of the weights; the one of step v * H is version v
    FOLDER/rounds/000003/            the tasks of a round, a shard each; its `sum` is one more
    FOLDER/results/                  checkpoints that the tasks of the last rounds have ended with
    FOLDER/work/                     runs that go on

Nothing here needs torch, so that `status` and `logs` answer at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from planner.errors import BadInput
from planner.files import read_record, write_whole
from runtime import checkpoint as checkpoints
from runtime.checkpoint import PREFIX
from runtime.leases import Tasks
from runtime.runfolder import Paths

MOST_ROUNDS, MOST_SHARDS = 10**6, 10**4
KEPT_ROUNDS = 2  # whose versions and results stay, so that one that is spoiled can be made again
SHOWN, ROUNDS_READ = 3, 100


@dataclass(frozen=True, kw_only=True)
class Outer:
    """The step that all shards take together: SGD on the mean change, with Nesterov's momentum where it has any."""

    rate: float = 1.0
    momentum: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Outer:
        """Returns the step that words such as "sgd:0.7:0.9" stand for.

        Raises: BadInput for any others.
        """
        found = re.fullmatch(r"sgd(?::([0-9.eE+-]+))?(?::([0-9.eE+-]+))?", text)
        try:
            rate, momentum = (float(x) if x else d for x, d in zip(found.groups(), (1.0, 0.0), strict=True))  # type: ignore[union-attr]
            if 0 < rate < float("inf") and 0 <= momentum < 1:
                return cls(rate=rate, momentum=momentum)
        except (AttributeError, ValueError):
            pass
        allowed = "sgd, sgd:RATE or sgd:RATE:MOMENTUM, with a rate above 0 and a momentum from 0 to below 1"
        raise BadInput(f"'{text}'", where="--outer", allowed=allowed)

    def __str__(self) -> str:
        return f"sgd:{self.rate:g}:{self.momentum:g}"


@dataclass(frozen=True, kw_only=True)
class IslandsAsked:
    """The wishes of a user for a training by islands."""

    rounds: int
    inner_steps: int
    shards: int
    outer: Outer = field(default_factory=Outer)


@dataclass(frozen=True, kw_only=True)
class IslandsJob:
    """Everything that decides the numbers of a training by islands, beside its plan and job; all islands read the
    same.
    """

    rounds: int
    inner_steps: int
    shards: int
    rate: float
    momentum: float
    directory: str  # where the user stood; names of files count from there

    @property
    def outer(self) -> Outer:
        return Outer(rate=self.rate, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True)
class ShardDone:
    """What an island writes when the steps of a shard are done."""

    result: str  # the name of a checkpoint below `results`
    losses: list[float]  # one a step
    seconds: float
    host: str


@dataclass(frozen=True, kw_only=True)
class IslandsStatus:
    """The state of a training by islands."""

    folder: str
    version: int  # the newest
    rounds: int
    shards: int
    inner_steps: int
    done: int  # shards of the round at hand
    held: int
    aside: dict[str, str]  # shard -> why it failed the last time
    cancelled: bool
    losses: dict[int, float]  # the mean of each of the last rounds that are done
    checksum: str  # of the newest version

    @property
    def state(self) -> str:
        """Returns "done", "cancelled", "failed" where shards are set aside, "running", or "unfinished"."""
        if self.version >= self.rounds:
            return "done"
        if self.cancelled:
            return "cancelled"
        if self.aside:
            return "failed"
        return "running" if self.held else "unfinished"


class IslandsFolder:
    """The folder that islands share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def paths(self) -> Paths:
        """Returns the files that it has in common with the folder of a run."""
        return Paths(self.root)

    @property
    def file(self) -> Path:
        return self.paths.islands

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def read(self) -> IslandsJob:
        """Returns what the islands train.

        Raises: BadInput where that is not said, or not in numbers that can be.
        """
        found = read_record(IslandsJob, self.file)
        whole = (("rounds", MOST_ROUNDS), ("inner_steps", 10**9), ("shards", MOST_SHARDS))
        for name, most in whole:
            if not 1 <= getattr(found, name) <= most:
                raise BadInput(
                    f"{name} is {getattr(found, name)}", where=str(self.file), allowed=f"1 to {most}"
                )
        Outer.parse(str(found.outer))
        return found

    def write(self, job: IslandsJob) -> None:
        """Writes what the islands train."""
        write_whole(self.file, json.dumps(asdict(job), indent=1))

    def tasks(self, version: int, job: IslandsJob) -> Tasks:
        """Returns the tasks of the round that begins with a version: one for each shard."""
        return Tasks(self._round(version), [shard_name(shard) for shard in range(job.shards)])

    def sums(self, version: int) -> Tasks:
        """Returns the one task that ends the round: to add up."""
        return Tasks(self._round(version) / "sum", [SUM])

    def _round(self, version: int) -> Path:
        return self.root / "rounds" / f"{version:06d}"

    def done(self, version: int, shard: int) -> Path:
        """Returns the file that says that a shard's steps from a version are done."""
        return self._round(version) / "done" / f"{shard_name(shard)}.json"

    def not_summed(self, version: int) -> None:
        """Has the sum that ended the round of a version made again."""
        (self._round(version) / "sum" / "done" / f"{SUM}.json").unlink(missing_ok=True)

    def version(self, number: int, job: IslandsJob) -> Path:
        """Returns the checkpoint that a version is."""
        return checkpoints.folder_of(self.paths.checkpoints, number * job.inner_steps)

    def versions(self, job: IslandsJob) -> list[int]:
        """Returns the numbers of the versions that are there."""
        steps = (int(path.name.removeprefix(PREFIX)) for path in checkpoints.complete(self.paths.checkpoints))
        return sorted(step // job.inner_steps for step in steps if step % job.inner_steps == 0)

    def asked(self) -> IslandsAsked:
        """Returns the wishes that the folder was begun with."""
        job = self.read()
        return IslandsAsked(
            rounds=job.rounds, inner_steps=job.inner_steps, shards=job.shards, outer=job.outer
        )

    def longer(self, rounds: int) -> None:
        """Has the islands go on for more rounds than they were asked for."""
        job = self.read()
        if rounds > job.rounds:
            self.write(replace(job, rounds=rounds))


SUM = "sum"


def shard_name(shard: int) -> str:
    """Returns the name of the task of a shard."""
    return f"shard-{shard:05d}"


def shard_of_name(name: str) -> int:
    """Returns the shard that the name of a task stands for."""
    return int(name.removeprefix("shard-"))


def checksum(checkpoint: Path) -> str:
    """Returns a checksum of a checkpoint: of its index, which has the sums of all its files."""
    try:
        return hashlib.sha256((checkpoint / checkpoints.INDEX).read_bytes()).hexdigest()[:32]
    except OSError:
        return ""


def islands_status(folder: IslandsFolder) -> IslandsStatus:
    """Returns how far islands are, from their folder alone."""
    job = folder.read()
    versions = folder.versions(job)
    version = versions[-1] if versions else 0
    tasks = folder.tasks(version, job)
    counts = tasks.counts()
    losses = {}
    for number in range(max(0, version - ROUNDS_READ), version):
        rows = [row for shard in range(job.shards) if (row := _row(folder.done(number, shard))) is not None]
        every = [loss for row in rows for loss in row.losses]
        losses[number + 1] = sum(every) / len(every) if every else float("nan")
    return IslandsStatus(
        folder=str(folder.root),
        version=version,
        rounds=job.rounds,
        shards=job.shards,
        inner_steps=job.inner_steps,
        done=counts.done,
        held=counts.held,
        aside=tasks.failures(),
        cancelled=folder.paths.cancelled.exists(),
        losses=losses,
        checksum=checksum(folder.version(version, job)),
    )


def _row(path: Path) -> ShardDone | None:
    try:
        return read_record(ShardDone, path)
    except BadInput:
        return None


def islands_text(found: IslandsStatus) -> str:
    """Returns the state of islands for people."""
    lines = [
        f"{found.folder}: {found.state}, version {found.version} of {found.rounds}, "
        f"{found.inner_steps} steps of {found.shards} shards a round"
    ]
    if found.version < found.rounds:
        lines.append(f"{found.done} shards of this round are done, {found.held} in hand")
    lines += [f"round {number}: mean loss {loss:.6g}" for number, loss in list(found.losses.items())[-SHOWN:]]
    lines.append(f"checksum {found.checksum}")
    if found.aside:
        lines.append(f"{len(found.aside)} shards are set aside after failing:")
        lines += [f"  {name}: {why}" for name, why in list(found.aside.items())[:SHOWN]]
        lines.append(f"  to try them again, remove {found.folder}/rounds/*/failed and type the same command")
    return "\n".join(lines)
