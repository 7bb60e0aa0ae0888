"""Writes the files of a run folder whole or not at all, on a full disk too.

The run folder holds a reserve file that nobody reads. When the disk is full, the reserve is deleted. Its room
is enough to write the cause, the outcome and where each rank stood.
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
    """Writes a text file whole or not at all.

    Args: `path` has a suffix other than `.part`, under which the text is written first.
    Raises: OSError where the text cannot be written; the old file then stays.
    """
    part = path.with_suffix(".part")
    try:
        part.write_text(text)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    part.rename(path)


def append(path: Path, line: str) -> None:
    """Appends a line whole or not at all.

    An ended process may have left half a line at the end of the file. That line is closed first.
    Args: `line` has no newline; the file is made where there is none.
    Raises: OSError where the line cannot be written; the file is then as before.
    """
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
    """Writes the reserve file, which is deleted when the disk is full.

    Its bytes are random, because some file systems store zeros as nothing.
    Args: `ranks` is the number of ranks that may have to write their last words.
    """
    paths.reserve.write_bytes(os.urandom((BLOCKS + BLOCKS_A_RANK * ranks) * BLOCK_BYTES))


def write_durably(paths: Paths, path: Path, text: str) -> None:
    """Writes a text file whole; on a full disk it deletes the reserve and tries again.

    Args: `path` is a file of the run folder `paths`.
    Raises: OSError where the disk is full and the reserve is gone, or for any other reason.
    """
    _even_when_full(paths, lambda: write_whole(path, text))


def append_durably(paths: Paths, path: Path, line: str) -> None:
    """Appends a line whole; on a full disk it deletes the reserve and tries again.

    Args: `path` is a file of the run folder `paths`; `line` has no newline.
    Raises: OSError where the disk is full and the reserve is gone, or for any other reason.
    """
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
