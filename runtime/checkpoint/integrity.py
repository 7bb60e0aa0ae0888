"""Judges whether checkpoints on disk are what was written: sums of their files, without torch, before ranks
are started.

A checkpoint that is not sound is set aside under another name, so that everyone goes on from the one before
it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from planner.errors import BadInput

INDEX = "index.json"
SUM_OF_INDEX = "index.sum"
PREFIX, SPOILED = "step-", "spoiled-"
BLOCK_BYTES = 2**22


def settle(path: Path) -> str:
    """Makes sure that a file is on disk, whatever happens to this machine.

    Args: `path` has been written and closed.
    Returns: its size and checksum as text.
    """
    total = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            total = zlib.crc32(block, total)
        os.fsync(file.fileno())
    return f"{path.stat().st_size} {total:08x}"


def sum_of(path: Path) -> str:
    """Returns size and checksum of a file as `settle` gives them; empty where it cannot be read.

    Args: `path` may be missing.
    """
    total = size = 0
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                total, size = zlib.crc32(block, total), size + len(block)
    except OSError:
        return ""
    return f"{size} {total:08x}"


def complete(folder: Path) -> list[Path]:
    """Returns the folders of complete checkpoints, in the order of steps.

    Args: `folder` has the checkpoints of a run.
    """
    return sorted(
        path for path in folder.glob(PREFIX + "*") if path.suffix == "" and (path / INDEX).is_file()
    )


def flaw(checkpoint: Path) -> str:
    """Returns in words what is wrong with a checkpoint; empty where nothing is.

    Args: `checkpoint` is its own folder.
    """
    try:
        expected = (checkpoint / SUM_OF_INDEX).read_text()
        if sum_of(checkpoint / INDEX) != expected:
            return f"{INDEX} is not what was written"
        sums = json.loads((checkpoint / INDEX).read_text())["sums"]
    except (OSError, ValueError, KeyError) as error:
        return f"its sums cannot be read: {error}"
    for name, expected in sorted(sums.items()):
        if sum_of(checkpoint / name) != expected:
            return f"{name} is not what was written"
    return ""


def last_sound(folder: Path, tell: Callable[[str], None]) -> Path:
    """Returns the newest sound checkpoint; newer ones that are spoiled are set aside under another name.

    Args: `folder` has the checkpoints of a run; `tell` is called with a sentence for each that is set aside.
    Raises: BadInput where no sound one is left.
    """
    found = complete(folder)
    for path in reversed(found):
        if not (what := flaw(path)):
            return path
        aside = path.with_name(SPOILED + path.name)
        number = 1
        while aside.exists():
            aside, number = path.with_name(f"{SPOILED}{number}-{path.name}"), number + 1
        path.rename(aside)
        tell(
            f"checkpoint {path.name} is spoiled ({what}); it is now {aside.name}, and the one before it is used"
        )
    raise BadInput("no sound checkpoint is left", where=str(folder))
