"""The folder of tasks beside an output volume: what is computed (`InferJob`), how far it is, and what it is called.

Nothing here needs torch, so that `status` and `logs` answer at once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path

from planner.errors import BadInput
from planner.files import read_bytes, read_record
from planner.spatial import Box
from runtime.leases import Tasks

TASKS = ".tasks"  # behind the name of the output
SAMPLES = 3  # tasks that are named in a message
RECORD_BYTES, MOST_ROWS, MOST_TASKS = 2**16, 2**40, 10**6


@dataclass(frozen=True, kw_only=True)
class InferJob:
    """Everything that decides the numbers of an output volume; all workers read the same."""

    workload: str
    settings: dict[str, str]
    directory: str  # where the user stood; names of files count from there
    weights: str
    weights_digest: str
    input: str
    output: str
    mask: str = ""
    mode: str = "exact"
    chunk: list[int] = field(default_factory=list)  # rows of the output that a task makes, along each axis
    sweep: list[int] = field(default_factory=list)  # the axis that a task goes along, and the rows of a pass
    patch: list[int] = field(default_factory=list)  # rows of the input that a blended forward pass takes
    overlap: list[int] = field(default_factory=list)
    flips: bool = False
    dtype: str = "float32"
    device: str = "cpu"
    devices: int = 0  # that share one task, the whole volume; 0: boxes, each on one
    fingerprint: str = ""  # of the model: operations with their numbers, and what its code makes
    stamp: str = ""  # names, sizes and times of the files of input and mask, as one digest


@dataclass(frozen=True, kw_only=True)
class DoneTask:
    """What a worker writes when a task is done."""

    checksum: str
    odd: int  # numbers read that are not finite
    odd_made: int  # and numbers made
    seconds: float
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class InferStatus:
    """The state of an output volume."""

    output: str
    total: int
    done: int
    held: int
    aside: dict[str, str]  # task -> why it failed the last time
    odd: int  # finished tasks that have read numbers that are not finite
    odd_made: int  # and those that have made some
    seconds: float  # of all finished tasks
    checksum: str  # of the finished volume; empty before

    @property
    def state(self) -> str:
        """Returns "done", "failed" where tasks are set aside and nothing else is left, or "unfinished"."""
        if self.done == self.total:
            return "done"
        return "failed" if self.done + len(self.aside) == self.total else "unfinished"


class InferFolder:
    """The folder of tasks beside an output volume."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def beside(cls, output: str) -> InferFolder:
        """Returns the folder of an output volume, which need not exist."""
        return cls(Path(output + TASKS))

    @property
    def job(self) -> Path:
        return self.root / "infer.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def read(self) -> InferJob:
        """Returns the job of the folder.

        Raises: BadInput where the folder has none.
        """
        return read_record(InferJob, self.job)

    def space(self) -> tuple[int, ...]:
        """Returns the rows of the output along each axis of space."""
        path = self.root / "space.json"
        try:
            rows = json.loads(read_bytes(path, max_bytes=RECORD_BYTES))
        except (ValueError, RecursionError):
            rows = None
        if not (isinstance(rows, list) and rows and all(type(n) is int and 0 < n <= MOST_ROWS for n in rows)):
            raise BadInput(
                "holds no rows along axes", where=str(path), allowed=f"numbers from 1 to {MOST_ROWS}"
            )
        return tuple(rows)

    def check_space(self, rows: tuple[int, ...]) -> None:
        """Checks that the tasks are those of the output.

        Args: `rows` are those that the model gives along each axis of space.
        Raises: BadInput where the folder has others.
        """
        if (found := self.space()) != rows:
            raise BadInput(
                f"has an output of {found}, and the model gives {rows}",
                where=str(self.root),
                allowed="tasks of this output: remove them, and the output beside them",
            )

    def tasks(self) -> Tasks:
        """Returns the tasks of the folder.

        Raises: BadInput where it says no chunk of its space, or too many of them.
        """
        space, chunk = self.space(), self.read().chunk
        if len(chunk) != len(space) or not all(rows > 0 for rows in chunk):
            raise BadInput(
                f"chunk is {chunk}",
                where=str(self.job),
                allowed=f"{len(space)} numbers from 1 on, as of the space",
            )
        if (count := prod(ceil(n / c) for n, c in zip(space, chunk, strict=True))) > MOST_TASKS:
            raise BadInput(
                f"has {count} tasks", where=str(self.job), allowed=f"at most {MOST_TASKS}: larger chunks"
            )
        return Tasks(self.root, [name_of(box) for box in boxes(space, chunk)])


def boxes(space: Sequence[int], chunk: Sequence[int]) -> Iterator[Box]:
    """Yields the boxes of an output in order.

    Args: `space` and `chunk` have rows along each axis.
    """
    axes = [range(ceil(n / c)) for n, c in zip(space, chunk, strict=True)]
    for place in itertools.product(*axes):
        yield tuple((i * c, min((i + 1) * c, n)) for i, c, n in zip(place, chunk, space, strict=True))


def name_of(box: Box) -> str:
    """Returns the name of a task, by its box of the output."""
    return "_".join(f"{low}-{high}" for low, high in box)


def box_of(name: str) -> Box:
    """Returns the box that a task's name stands for."""
    pairs = [part.split("-") for part in name.split("_")]
    return tuple((int(low), int(high)) for low, high in pairs)


def status_of(folder: InferFolder) -> InferStatus:
    """Returns how far an output is, from its folder alone."""
    tasks, job = folder.tasks(), folder.read()
    rows, counts = tasks.results(DoneTask), tasks.counts()
    total = hashlib.sha256("".join(f"{name} {row.checksum}\n" for name, row in sorted(rows.items())).encode())
    return InferStatus(
        output=job.output,
        total=counts.total,
        done=counts.done,
        held=counts.held,
        aside=tasks.failures(),
        odd=sum(bool(row.odd) for row in rows.values()),
        odd_made=sum(bool(row.odd_made) for row in rows.values()),
        seconds=sum(row.seconds for row in rows.values()),
        checksum=total.hexdigest()[:32] if counts.done == counts.total else "",
    )


def status_text(found: InferStatus) -> str:
    """Returns the state of an output for people."""
    lines = [f"{found.output}: {found.state}, {found.done} of {found.total} tasks, {found.held} in hand"]
    if found.checksum:
        lines.append(f"checksum {found.checksum}")
    if found.odd:
        lines.append(
            f"{found.odd} tasks read numbers that are not finite (NaN or infinite); {found.odd_made} made some"
        )
    if found.aside:
        lines.append(f"{len(found.aside)} tasks are set aside after failing:")
        lines += [f"  {name}: {why}" for name, why in list(found.aside.items())[:SAMPLES]]
        lines.append(f"  to try them again, remove {found.output}{TASKS}/failed and type the same command")
    return "\n".join(lines)
