"""Writes the files of a run folder whole or not at all, on a full disk too.

The run folder holds a reserve file that nobody reads. When the disk is full, the reserve is deleted. Its room
is enough to write the cause, the outcome and where each rank stood.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from runtime.runfolder.paths import Paths

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # or the limit of a user
BLOCK_BYTES = 4096
# Of a rank: its record, its cause and a line of its log, each of them beside the file that it takes the place of.
BLOCKS_A_RANK, BLOCKS = 8, 32
MOST_STEPS_BYTES = 64 * 2**20  # of the metrics of one rank: about 200,000 steps
MOST_TWOS = 40


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


def append(path: Path, line: str) -> int:
    """Appends a line whole or not at all.

    An ended process may have left half a line at the end of the file. That line is closed first.
    Args: `line` has no newline; the file is made where there is none.
    Returns: the size that the file has now.
    Raises: OSError where the line cannot be written; the file is then as before.
    """
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        words = ("\n" * torn + line + "\n").encode()
        left = memoryview(words)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise
    return size + len(words)


def append_step(path: Path, line: str) -> None:
    """Appends the line of a step, and thins the file out where it has grown too long.

    Args: `line` is an object that begins with its "step".
    Raises: OSError where the line cannot be written; the file is then as before.
    """
    if append(path, line) > MOST_STEPS_BYTES:
        with suppress(OSError):  # where there is no room for a second file, the first one stays as it is
            thin_out(path, MOST_STEPS_BYTES)


def thin_out(path: Path, most: int) -> None:
    """Rewrites a file of steps: the newer half stays, and of the older half every second step, or fourth, or eighth.

    The older half gets at most a quarter of `most`. All ranks keep steps of the same numbers, so that a step which stays
    is whole.
    Args: `most` is the size that is allowed; lines that are no steps go.
    """
    half = path.stat().st_size - most // 2
    by_twos = [0] * MOST_TWOS  # bytes of steps by how often their number can be halved
    for at, twos, line in _steps(path):
        if at < half:
            by_twos[twos] += len(line)
    left = next(
        twos for twos in range(MOST_TWOS) if sum(by_twos[twos:]) <= most // 4 or twos == MOST_TWOS - 1
    )
    thin = path.with_suffix(".thin")
    try:
        with thin.open("wb") as file:
            file.writelines(line for at, twos, line in _steps(path) if at >= half or twos >= left)
    except OSError:
        thin.unlink(missing_ok=True)
        raise
    thin.rename(path)


def _steps(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yields the lines of a file of steps: where each begins, how often its number can be halved, and the line."""
    at = 0
    with path.open("rb") as file:
        for line in file:
            found = re.match(rb'\{"step": (\d{1,18}),', line)
            if found and line.endswith(b"\n"):
                step = int(found[1])
                yield at, min((step & -step).bit_length() - 1, MOST_TWOS - 1) if step else 0, line
            at += len(line)


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


def _even_when_full(paths: Paths, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        with suppress(FileNotFoundError):
            paths.reserve.unlink()
        write()
