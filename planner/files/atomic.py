"""Writes files and folders whole or not at all, and refuses to overwrite."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import BadInput


def refuse_overwrite(path: Path, force: bool) -> None:
    """Checks whether a file may be written.

    Args: `force` allows a file that exists.
    Raises: BadInput where it may not: the file exists, is a folder, or its folder is missing or cannot be written.
    """
    if path.exists() and not force:
        raise BadInput(
            "exists already", where=str(path), allowed="--force to overwrite it, or -o with another name"
        )
    if not path.parent.is_dir():
        raise BadInput("no such folder", where=str(path.parent))
    if path.is_dir():
        raise BadInput("is a folder", where=str(path), allowed="the name of a file")
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
    refuse_overwrite(path, force=False)


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
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=".shardwright-"))
    try:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")
        path.mkdir(exist_ok=True)
        for name in texts:
            (made / name).replace(path / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that it appears complete or not at all.

    Args: `path` lies in a folder that exists; a file that is there is replaced.
    Raises: BadInput where the disk does not take it.
    """
    try:
        _write_whole(path, text)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None


def _write_whole(path: Path, text: str) -> None:
    # The name is not part of the temporary one: it may be as long as a name can be.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".shardwright-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
