"""What was asked of a scavenger, and what it has done: one line before and one after every change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from planner.errors import BadInput
from planner.files import absolute, find_record, read_lines, write_whole

TRIES = 3  # without a step between them


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a scavenger trains, on which partition, and for how long."""

    jobs: str  # the folder of plans
    partition: str
    steps: int
    save_every: int = 100
    grace: bool = False  # whether jobs use the partition's grace time for a checkpoint, while others wait
    most: int = 0  # nodes for all jobs together; 0 is all that are idle
    look_ahead_s: float = 120.0
    unit: Literal["speed-up", "samples"] = "speed-up"
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Note:
    """One line of the journal. What is asked for was not yet done; what is queued or stopped was."""

    time_s: float
    job: str
    what: str  # asked | queued | stopped | trained | failed | aside
    nodes: int = 0  # that it shall have
    before: int = 0
    step: int = 0  # the last one that was done
    why: str = ""
    took_s: float = 0.0  # from what was asked to the first step


class IdleJournal:
    """The folder of a scavenger: what was asked, its journal, and a run folder for every job."""

    def __init__(self, root: Path) -> None:
        self.root = absolute(root)
        self.asked_file, self.file = self.root / "scavenge.json", self.root / "journal.jsonl"
        self.lock = self.root / "lock"
        self._notes: list[Note] = []

    def open(self, asked: Asked) -> None:
        """Makes the folder, or goes on in it.

        Args: `asked` may change what was asked before, but not the jobs.
        Raises: BadInput where the folder holds something else, or trains other jobs.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            empty = not any(self.root.iterdir())
        except OSError as error:
            raise BadInput(f"cannot be used: {error.strerror}", where=str(self.root)) from error
        before = find_record(Asked, self.asked_file)
        if before is None and not empty:
            allowed = "a new folder, an empty one, or one of a scavenger"
            raise BadInput(
                "is neither empty nor the folder of a scavenger", where=str(self.root), allowed=allowed
            )
        if before is not None and before.jobs != asked.jobs:
            raise BadInput(
                f"trains the jobs of {before.jobs}", where=str(self.root), allowed="another folder"
            )
        write_whole(self.asked_file, json.dumps(asdict(asked), indent=1))
        self._notes = read_lines(Note, self.file) if self.file.exists() else []

    def write(self, note: Note) -> Note:
        """Adds a line, which is on the disk when this returns. A torn one above it, of a process that died, is ended."""
        with self.file.open("a+b") as file:
            torn = file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write(b"\n" * bool(torn) + json.dumps(asdict(note)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._notes.append(note)
        return note

    def of(self, job: str, *kinds: str) -> list[Note]:
        """Returns the lines of a job in order.

        Args: `kinds` are those that count; without any, all do.
        """
        return [note for note in self._notes if note.job == job and (not kinds or note.what in kinds)]

    def rescale_s(self, job: str, *, up: bool, otherwise: float) -> float:
        """Returns the seconds without training that a change of size took, in the median of the job's own changes.

        Args: `up` is for changes to more nodes; `otherwise` counts where there was none yet.
        """
        took = [note.took_s for note in self.of(job, "trained") if (note.nodes > note.before) == up]
        return median(took) if took else otherwise

    def tired(self, job: str) -> bool:
        """Returns whether the job was started again and again without one more step."""
        last = self.of(job, "queued", "failed")[-TRIES:]
        again = [note for note in last if note.what == "failed" or note.why]
        return len(again) == TRIES and len({note.step for note in again}) == 1
