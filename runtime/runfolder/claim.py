"""Takes a folder for a run: it is the caller's own, holds no links, and one launch at a time prepares it.

Folders above the run folder may be reached through links, which are the caller's word. The folder itself and
whatever a run writes inside of it may be none: everything is looked at through the opened folder.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from planner.errors import BadInput
from planner.files import absolute, find_record
from runtime.runfolder.holder import RunProcess, note_process, of, refuse_held, take_number
from runtime.runfolder.paths import Paths


@contextmanager
def claimed(folder: Path, refuse: Callable[[Paths], None]) -> Iterator[Paths]:
    """Makes a run folder, or takes one over, while it is prepared. Afterwards this thread holds the folder.

    Of several launches that come at once, one goes on. Where it fails, a folder that was new or empty is left as it was.
    Args: `refuse` raises BadInput where somebody else uses the folder.
    Yields: the files of the run.
    Raises: BadInput where the folder is not the caller's, is neither empty nor a run folder, holds links, or is in use.
    """
    try:
        if folder.is_symlink():
            raise BadInput("is a link", where=str(folder), allowed=f"the folder itself, {absolute(folder)}")
        paths = Paths(absolute(folder))
        _refuse_inner(paths)
        new = [path for path in (paths.root, *paths.root.parents) if not path.exists()]
        mode = _own(paths, new)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = str(getattr(error, "filename", None) or folder)
        raise BadInput(f"cannot be a run folder: {reason}", where=where) from error
    with _alone(paths):
        refuse(paths)
        refuse_held(paths)
        note_process(paths, threading.get_native_id())
        try:
            yield paths.make()
        except BaseException:
            _leave(paths, new, mode)
            raise


def _refuse_inner(paths: Paths) -> None:
    """Raises BadInput where a folder lies inside a run folder, which another run writes and cleans."""
    around = next((path for path in paths.root.parents if Paths(path).job.is_file()), None)
    if around is not None:
        raise BadInput(
            f"lies inside the run folder {around}", where=str(paths.root), allowed="a folder beside it"
        )


def _own(paths: Paths, new: Sequence[Path]) -> int | None:
    """Makes a run folder private to the caller, whose it must be, without following links.

    Returns: the mode of a folder that was empty, None of a run folder.
    """
    paths.root.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        paths.root.mkdir(mode=0o700)
    handle = os.open(paths.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if not new:
            _check_owner(found, paths.root)
        names = os.listdir(handle)
        if names and not {paths.job.name, paths.launching.name}.intersection(names):
            allowed = "a new folder, an empty one, or a run folder"
            raise BadInput("is neither empty nor a run folder", where=str(paths.root), allowed=allowed)
        _check_inside(handle, names, paths.root)
        for inner in paths.folders:
            if inner.name in names:
                for root, folders, files, at in os.fwalk(inner.name, dir_fd=handle):
                    _check_inside(at, (*folders, *files), paths.root / root)
        os.fchmod(handle, 0o700)  # ranks meet at files in it
        return None if names else stat.S_IMODE(found.st_mode)
    finally:
        os.close(handle)


def _check_inside(handle: int, names: Iterable[str], where: Path) -> None:
    """Raises BadInput where one of the names in a folder is a link, a pipe or a device, or another user's."""
    for name in names:
        try:
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:  # another launch has removed it meanwhile
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise BadInput(
                "is a link, a pipe or a device", where=str(where / name), allowed="files and folders"
            )
        _check_owner(found, where / name)


def _check_owner(found: os.stat_result, where: Path) -> None:
    if found.st_uid != os.geteuid():
        raise BadInput(
            f"belongs to another user, number {found.st_uid}",
            where=str(where),
            allowed="a folder of your own",
        )


@contextmanager
def _alone(paths: Paths) -> Iterator[None]:
    """Holds the lock of launches of a run folder.

    Raises: BadInput where another launch holds it, or one of another host has left it.
    """
    busy: list[RunProcess] = []

    def over(last: Path) -> bool | None:
        found = find_record(RunProcess, last)
        if found is None:
            return None
        busy[:] = [found]
        return found.here and not found.alive

    paths.launching.mkdir(exist_ok=True)
    text = json.dumps(asdict(of(threading.get_native_id())))
    lock = take_number(paths.launching, text, over)
    if lock is None:
        raise BadInput(
            f"process {busy[0].pid} of {busy[0].host} launches in this folder",
            where=str(paths.root),
            allowed=f"another folder; or remove {paths.launching} if that process has gone",
        )
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _leave(paths: Paths, new: Sequence[Path], mode: int | None) -> None:
    """Leaves a folder in which no run could begin: removed where it was new, empty where it was empty."""
    paths.holder.unlink(missing_ok=True)
    if mode is None:
        return
    for path in paths.root.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    paths.root.chmod(mode)
    with suppress(OSError):  # of folders above it those that nobody else has used meanwhile
        for path in new:
            path.rmdir()
