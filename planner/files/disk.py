"""Reads regular files within bounds, writes files and folders whole or not at all, and refuses to overwrite."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from planner.errors import BadInput

MAX_BYTES = 16 * 2**20  # of a file that people edit; the largest plan of the examples has a hundredth of it
LENGTH_BYTES = 8  # at the beginning of safetensors: how long the header is
HEADER_BYTES = 16 * 2**20  # each is read into twenty bytes of memory
TOLD_HEADER = f"at most {HEADER_BYTES} bytes, of some 100,000 tensors: split it into several files"
MOST_MARKS = 4_000_000  # commas and brackets of JSON, of which each may cost 64 bytes of memory
MAX_LINE_BYTES = 2**20


def absolute(path: Path) -> Path:
    """Returns the absolute path with all links followed. A link that leads to itself stays as it is."""
    return Path(os.path.realpath(path))


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading, and never waits for a pipe or a device.

    Raises: BadInput where the path is no regular file; OSError where the file cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError:
        raise BadInput("is no name of a file", where=str(path), allowed="a name without zero bytes") from None
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise BadInput("is no regular file", where=str(path), allowed="a file, no pipe or device")
    return os.fdopen(handle, "rb")


def check_tensor_file(path: Path) -> None:
    """Checks that a file of tensors is a regular one whose header is short enough to be read.

    Raises: BadInput where it is none; OSError where it cannot be opened.
    """
    with open_regular(path) as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        size = os.fstat(file.fileno()).st_size
    if HEADER_BYTES < length <= size:  # what is longer than its file is no header, and found to be none
        raise BadInput(f"has a header of {length} bytes", where=str(path), allowed=TOLD_HEADER)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Reads a regular file.

    Raises: BadInput where the file cannot be read, is no regular file, or is larger than `max_bytes`.
    """
    try:
        with open_regular(path) as file:  # what is too large is not read first
            large = os.fstat(file.fileno()).st_size > max_bytes
            raw = b"" if large else file.read(max_bytes + 1)
    except OSError as error:
        raise BadInput(f"cannot read: {error.strerror or error}", where=str(path)) from None
    if large or len(raw) > max_bytes:
        raise BadInput("the file is too large", where=str(path), allowed=f"at most {max_bytes} bytes")
    return raw


def read_json(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:  # Any: what json.loads gives
    """Reads a file of JSON that costs no more memory than its bounds say.

    Raises: BadInput where the file cannot be read, is too large, holds too many values, or is no JSON.
    """
    raw = read_bytes(path, max_bytes=max_bytes)
    if (marks := sum(map(raw.count, b",[{"))) > MOST_MARKS:
        said = f"holds {marks:,} commas and brackets"
        raise BadInput(said, where=str(path), allowed=f"at most {MOST_MARKS:,}")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is no JSON: {error}", where=str(path)) from None


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Reads a regular file of text.

    Raises: BadInput where the file cannot be read, is larger than `max_bytes`, or is not UTF-8.
    """
    raw = read_bytes(path, max_bytes=max_bytes)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"byte {error.start} is not text in UTF-8", where=f"{path}:{line}", allowed="UTF-8"
        ) from None


def whole_lines(path: Path, *, start: int = 0, max_bytes: int) -> Iterator[bytes]:
    """Yields the lines of a regular file that end in a newline; a torn last line is left out.

    Args: `start` is the byte to begin at.
    Raises: BadInput where the file cannot be read, is larger than `max_bytes`, or has a line above a mebibyte.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > max_bytes:
                raise BadInput("the file is too large", where=str(path), allowed=f"at most {max_bytes} bytes")
            file.seek(start)
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    allowed = f"at most {MAX_LINE_BYTES} bytes"
                    raise BadInput("a line is too long", where=str(path), allowed=allowed)
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise BadInput(f"cannot read: {error.strerror or error}", where=str(path)) from None


def refuse_overwrite(path: Path, force: bool) -> None:
    """Checks whether a file may be written.

    Args: `force` allows a file that exists.
    Raises: BadInput where it may not: the file exists, is no file, or its folder is missing or cannot be written.
    """
    if path.exists() and not force:
        raise BadInput(
            "exists already", where=str(path), allowed="--force to overwrite it, or -o with another name"
        )
    if not path.parent.is_dir():
        raise BadInput("no such folder", where=str(path.parent))
    if path.is_dir():
        raise BadInput("is a folder", where=str(path), allowed="the name of a file")
    if path.exists() and not path.is_file():
        raise BadInput("is a pipe or a device", where=str(path), allowed="the name of a file")
    if not os.access(path.parent, os.W_OK):
        raise BadInput("cannot write into this folder", where=str(path.parent), allowed="one to write into")


def refuse_folder(path: Path, force: bool) -> None:
    """Checks whether a folder may be written: a new one, an empty one, or any with `force`.

    Args: `force` lets files of the same names be replaced.
    Raises: BadInput where it may not.
    """
    if path.is_dir() and (force or not any(path.iterdir())):
        return
    if path.is_dir():
        raise BadInput(
            "exists already, and is not empty",
            where=str(path),
            allowed="--force to overwrite what is in it, or -o with another name",
        )
    if path.exists():
        raise BadInput(
            "is a file, and several plans need a folder", where=str(path), allowed="-o with another name"
        )


def write_folder(path: Path, texts: Mapping[str, str]) -> None:
    """Writes all files of a folder, or none.

    Args: `texts` are by file name; files of other names stay.
    Raises: BadInput where the disk does not take them.
    """
    try:
        _write_folder(path, texts)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None


def _write_folder(path: Path, texts: Mapping[str, str]) -> None:
    made = _beside(path)
    made.mkdir(mode=0o700)
    try:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")
        path.mkdir(exist_ok=True)
        for name in texts:
            (made / name).replace(path / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that it appears complete or not at all, with the permissions that the umask leaves.

    Args: `path` lies in a folder that exists; a file that is there is replaced.
    Raises: BadInput where the disk does not take it.
    """
    part = _beside(path)
    try:
        with part.open("xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        part.replace(path)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Returns an unused name beside a path. The path's name is no part of it, since it may be as long as a name can be."""
    return path.parent / f".shardwright-{os.urandom(8).hex()}"
