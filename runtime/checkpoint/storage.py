"""Copies checkpoints to any place that fsspec knows, and says how many steps to do between them.

A copy is complete when its index is there, which is written last.

When machines fail at a given rate, steps between checkpoints follow from what a checkpoint costs.

With cost C of a checkpoint and mean time M between failures, Young's interval is sqrt(2 C M). Daly's keeps
the next terms: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2 M, and M otherwise.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from planner.errors import BadInput
from runtime.checkpoint.integrity import INDEX, PREFIX, STEP, inside, step_of

SAMPLE_BYTES = 32 * 2**20
BLOCK_BYTES = 2**22


def interval_s(cost_s: float, failures_every_s: float) -> float:
    """Returns Daly's interval between checkpoints, in seconds.

    Args: `cost_s` is the time that a checkpoint takes; `failures_every_s` the mean time between failures.
    """
    ratio = cost_s / (2 * failures_every_s)
    if ratio >= 1:
        return failures_every_s
    young = math.sqrt(2 * cost_s * failures_every_s)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def steps_between(step_s: float, cost_s: float, failures_every_s: float) -> int:
    """Returns how many steps to do between checkpoints, at least one.

    Args: `step_s` is the time of a step, `cost_s` that of a checkpoint, `failures_every_s` the mean between
        failures.
    """
    return max(1, round(interval_s(cost_s, failures_every_s) / max(step_s, 1e-9)))


def write_s(folder: Path, size_bytes: int) -> float:
    """Estimates the time to put some bytes on disk, from a file of at most 32 MiB.

    Args: `folder` lies on that disk.
    Returns: seconds for `size_bytes`.
    """
    block = os.urandom(2**20)
    blocks = max(1, min(size_bytes, SAMPLE_BYTES) // len(block))
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        took = time.perf_counter() - begin
    return took * size_bytes / (blocks * len(block))


class Copies:
    """Copies of checkpoints at a path that fsspec knows, such as `s3://bucket/run` or a folder."""

    def __init__(self, url: str) -> None:
        """Opens a place for copies.

        Args: `url` is any path that fsspec knows; one without a protocol is a folder.
        Raises: BadInput where fsspec, or what it needs for this protocol, is not installed.
        """
        self.url = url
        try:
            self._files, self._root = import_module("fsspec.core").url_to_fs(url)
        except ImportError as error:
            allowed = "pip install fsspec, and what the message names"
            raise BadInput(f"cannot be reached: {error}", where=url, allowed=allowed) from error
        except Exception as error:  # every kind of storage has errors of its own
            raise BadInput(
                f"cannot be reached: {error}", where=url, allowed="a path that fsspec knows"
            ) from error

    def check(self) -> None:
        """Writes and removes a file, so that a place that takes none is known before a run starts.

        Raises: BadInput where it takes none.
        """
        name = f"{self._root}/.shardwright-{os.getpid()}"
        try:
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(name, b"")
            self._files.rm_file(name)
        except Exception as error:
            raise BadInput(
                f"takes no file: {error}", where=self.url, allowed="a place to write to"
            ) from error

    def steps(self) -> list[int]:
        """Returns the steps of complete copies, in order."""
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        names = [str(row).rstrip("/").rpartition("/")[2] for row in self._files.ls(self._root, detail=False)]
        found = [int(name.removeprefix(PREFIX)) for name in names if STEP.fullmatch(name)]
        return sorted(step for step in found if self._files.exists(f"{self._at(step)}/{INDEX}"))

    def put(self, checkpoint: Path, moved: Callable[[], None] = lambda: None) -> None:
        """Copies a complete checkpoint, its index last.

        Args: `moved` is called with every block.
        """
        there = self._at(step_of(checkpoint))
        self._files.makedirs(there, exist_ok=True)
        for path in sorted(checkpoint.iterdir(), key=lambda path: (path.name == INDEX, path.name)):
            with path.open("rb") as file, self._files.open(f"{there}/{path.name}", "wb") as out:
                while block := file.read(BLOCK_BYTES):
                    out.write(block)
                    moved()

    def fetch(self, folder: Path, after: int) -> Path | None:
        """Brings the newest copy back that is later than a step.

        Args: `folder` has the checkpoints of a run.
        Returns: the checkpoint; None where there is no later one.
        Raises: BadInput where a file of it has a name that no checkpoint has.
        """
        steps = [step for step in self.steps() if step > after]
        if not steps:
            return None
        there, target = self._at(steps[-1]), folder / f"{PREFIX}{steps[-1]:08d}"
        building = target.with_suffix(".partial")
        building.mkdir(parents=True, exist_ok=True)
        for row in self._files.ls(there, detail=False):
            name = str(row).rpartition("/")[2]
            with self._files.open(f"{there}/{name}", "rb") as file, inside(building, name).open("wb") as out:
                shutil.copyfileobj(file, out, BLOCK_BYTES)
        building.rename(target)
        return target

    def remove(self, step: int) -> None:
        """Removes a copy, its index first."""
        self._files.rm_file(f"{self._at(step)}/{INDEX}")
        self._files.rm(self._at(step), recursive=True)

    def _at(self, step: int) -> str:
        return f"{self._root}/{PREFIX}{step:08d}"


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """The checkpoints of a run that stay, and where copies of them go."""

    last: int = 2  # complete checkpoints
    every: int = 0  # steps: those of their multiples stay for ever; 0 for none
    copies: Copies | None = None

    def old(self, steps: Sequence[int]) -> list[int]:
        """Returns which steps need not stay.

        Args: `steps` are those of complete checkpoints, in order.
        """
        return [step for step in steps[: -self.last] if not (self.every and step and step % self.every == 0)]
