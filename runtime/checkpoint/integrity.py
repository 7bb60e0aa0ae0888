"""Judges whether checkpoints on disk are what was written: sums of their files, without torch, before ranks
are started.

A checkpoint that is not sound is set aside under another name, so that everyone goes on from the one before
it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from planner.errors import BadInput
from planner.files import WrongKey, decode, open_regular, read_json, read_text

INDEX = "index.json"
SUM_OF_INDEX = "index.sum"
VERSION, OF_PIECES = 2, 3  # of an index without pieces, and with some
MODEL, STATE, AVERAGE = "model/", "optimizer/", "average/"  # before the names of tensors
OUTER = "outer/"  # before the names of parameters: the momentum of the step that islands take together
KEPT = "kept/"  # before the names of pruned parameters: the entries that their state has
PREFIX, SPOILED = "step-", "spoiled-"
BLOCK_BYTES = 2**22
TOUCH_S = 1.0
WRITE_AND_WAIT = 7  # of sync_file_range: wait before, write, wait after
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
INDEX_BYTES = 64 * 2**20  # a hundred thousand tensors take a third of it
STEP = re.compile(PREFIX + "[0-9]{1,15}")
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a run must know beside its tensors to go on as if it had never stopped."""

    step: int
    sample: int  # position in the stream of samples
    seed: int
    fingerprint: str
    extra: dict[str, float] = field(default_factory=dict)  # a scaler's state
    training: dict[str, str] = field(default_factory=dict)  # what it is trained on and by, in words


@dataclass(frozen=True, kw_only=True)
class PiecesOfTensor:
    """A tensor whose elements lie in several parts, under its name in each: laid flat, from a start to a stop."""

    shape: tuple[int, ...]
    parts: dict[str, tuple[int, int]]  # part -> start, stop


@dataclass(frozen=True, kw_only=True)
class CheckpointIndex:
    """The index of a checkpoint as it stands on disk."""

    version: int
    facts: Facts
    files: dict[str, str]  # tensor -> part
    names: dict[str, str]
    sums: dict[str, str]  # part -> size and checksum
    settings: dict[str, dict[str, dict[str, object]]]
    pieces: dict[str, PiecesOfTensor] = field(default_factory=dict)  # of tensors that are in no single part


def read_index(checkpoint: Path) -> CheckpointIndex:
    """Reads the index of a checkpoint, whose parts lie in the checkpoint's own folder.

    Raises: BadInput where there is no index, or it holds anything else.
    """
    path = checkpoint / INDEX
    try:
        found = read_json(path, max_bytes=INDEX_BYTES)
        settings = found.pop("settings", None)
        index = decode(CheckpointIndex, {**found, "settings": {}})
    except BadInput as error:
        raise BadInput(f"no complete checkpoint: {error.what}", where=str(checkpoint)) from error
    except (ValueError, TypeError, AttributeError, RecursionError, WrongKey) as error:
        raise BadInput(f"no complete checkpoint: {error}", where=str(path)) from error
    if not _two_deep(settings):
        raise BadInput("no complete checkpoint: its settings are none", where=str(path))
    for part in {
        *index.files.values(),
        *index.sums,
        *(p for row in index.pieces.values() for p in row.parts),
    }:
        inside(checkpoint, part)
    for name, row in index.pieces.items():
        ends = sorted(row.parts.values())
        joined = [0, *(stop for _, stop in ends)] == [*(start for start, _ in ends), prod(row.shape)]
        if not joined or min(row.shape, default=0) < 0:
            raise BadInput(f"the parts of '{name}' do not make it up", where=str(path))
    return replace(index, settings=settings)


def _two_deep(settings: object) -> bool:
    """Returns whether the settings are mappings of mappings, whose values are the optimizer's business."""
    return isinstance(settings, dict) and all(
        isinstance(groups, dict) and all(isinstance(group, dict) for group in groups.values())
        for groups in settings.values()
    )


def inside(checkpoint: Path, part: str) -> Path:
    """Returns the file of a part of a checkpoint.

    Raises: BadInput where the part's name leads out of the checkpoint, or the file is a link or no file.
    """
    path = checkpoint / part
    if not _PART.fullmatch(part) or path.is_symlink() or (path.exists() and not path.is_file()):
        raise BadInput(f"names '{part}', which is no file in it", where=str(checkpoint / INDEX))
    return path


def settle(path: Path, moved: Callable[[], None] = lambda: None) -> str:
    """Makes sure that a file is on disk, whatever happens to this machine.

    Args: `path` has been written and closed; `moved` is called again and again meanwhile.
    Returns: its size and checksum as text.
    """
    total = 0
    told_s = time.monotonic()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            total = zlib.crc32(block, total)
            # Block by block, since nobody can see how far the one call at the end has come.
            LIBC.sync_file_range(file.fileno(), file.tell() - len(block), len(block), WRITE_AND_WAIT)
            moved()
            if time.monotonic() - told_s > TOUCH_S:
                told_s = time.monotonic()
                os.utime(path)  # ranks that wait for this one see that it moves
        os.fsync(file.fileno())
    moved()
    return f"{path.stat().st_size} {total:08x}"


def sum_of(path: Path) -> str:
    """Returns size and checksum of a file as `settle` gives them; empty where it cannot be read.

    Args: `path` may be missing.
    """
    total = size = 0
    try:
        with open_regular(path) as file:
            while block := file.read(BLOCK_BYTES):
                total, size = zlib.crc32(block, total), size + len(block)
    except (OSError, BadInput):
        return ""
    return f"{size} {total:08x}"


def folder_of(folder: Path, step: int) -> Path:
    """Returns the folder that the complete checkpoint of a step has.

    Args: `folder` has the checkpoints of a run.
    """
    return folder / f"{PREFIX}{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Returns the step of a complete checkpoint, by its name."""
    return int(checkpoint.name.removeprefix(PREFIX))


def newest(folder: Path) -> int:
    """Returns the step of the newest complete checkpoint, -1 without any.

    Args: `folder` has the checkpoints of a run.
    """
    found = complete(folder)
    return step_of(found[-1]) if found else -1


def complete(folder: Path) -> list[Path]:
    """Returns the folders of complete checkpoints, in the order of steps.

    Args: `folder` has the checkpoints of a run.
    """
    return sorted(
        path for path in folder.glob(PREFIX + "*") if STEP.fullmatch(path.name) and (path / INDEX).is_file()
    )


def flaw(checkpoint: Path) -> str:
    """Returns in words what is wrong with a checkpoint; empty where nothing is.

    Args: `checkpoint` is its own folder.
    """
    try:
        expected = read_text(checkpoint / SUM_OF_INDEX, max_bytes=BLOCK_BYTES)
        if sum_of(checkpoint / INDEX) != expected:
            return f"{INDEX} is not what was written"
        sums = read_index(checkpoint).sums
    except BadInput as error:
        return f"its sums cannot be read: {error.what}"
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
        for older in folder.glob(f"{SPOILED}*"):  # one is enough to look at
            shutil.rmtree(older)
        path.rename(aside)
        tell(
            f"checkpoint {path.name} is spoiled ({what}); it is now {aside.name}, and the one before it is used"
        )
    raise BadInput("no sound checkpoint is left", where=str(folder))


def remove_partial(folder: Path) -> None:
    """Removes checkpoints that a run was ended in the middle of, as it wrote or removed them.

    Args: `folder` has the checkpoints of a run.
    """
    for path in folder.glob(PREFIX + "*"):
        half = STEP.fullmatch(path.name) and path.is_dir() and not (path / INDEX).is_file()
        if half or path.name.endswith(".partial"):
            shutil.rmtree(path)


def remove(checkpoint: Path) -> None:
    """Removes a checkpoint. It loses its name first, so that a run which is ended meanwhile leaves no half of one.

    Args: `checkpoint` is its own folder.
    """
    gone = checkpoint.with_suffix(".partial")
    shutil.rmtree(gone, ignore_errors=True)
    checkpoint.rename(gone)
    shutil.rmtree(gone)
