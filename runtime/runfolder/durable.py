"""What a run says of itself in its folder: written whole or not at all, and on a full disk too.

A file is kept in the run folder that nobody reads. When the disk is full it is given up, so that there is room to
say so: the cause, how the run ended, where each rank stood.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runtime.runfolder.paths import Paths

FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK_BYTES = 4096
# Of a rank: its record, its cause and a line of its log, each of them beside the file that it takes the place of.
BLOCKS_A_RANK, BLOCKS = 8, 32


def write_whole(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    try:
        part.write_text(text)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.rename(path)


def append(path: Path, line: str) -> None:
    """A line more, or none; what an ended process left of one is closed before it."""
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        left = memoryview(("\n" * torn + line + "\n").encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def keep_room(paths: Paths, ranks: int) -> None:
    """Random bytes, since a file system may store zeros as nothing."""
    paths.reserve.write_bytes(os.urandom((BLOCKS + BLOCKS_A_RANK * ranks) * BLOCK_BYTES))


def write_durably(paths: Paths, path: Path, text: str) -> None:
    """As `write_whole`, in the room kept for it where there is no other."""
    _even_when_full(paths, lambda: write_whole(path, text))


def append_durably(paths: Paths, path: Path, line: str) -> None:
    _even_when_full(paths, lambda: append(path, line))


def _even_when_full(paths: Paths, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        with suppress(FileNotFoundError):
            paths.reserve.unlink()
        write()
