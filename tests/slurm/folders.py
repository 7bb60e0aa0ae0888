"""Folders that test clusters live in: known by a lock that dies with their owner, so that what a killed run left is
found by the next one and taken away. Its processes are gone already, they die with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX, LOCK = "slurm-", "owner"


@contextmanager
def own(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, short enough for the sockets that the daemons make in it."""
    home = parent or Path(tempfile.gettempdir())
    sweep(home)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            remove(folder)


def sweep(home: Path) -> None:
    for lock in home.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(lock.parent)


def remove(folder: Path) -> None:
    """With the disks that are mounted in it."""
    for inside in folder.iterdir():
        if os.path.ismount(inside):
            subprocess.run(["umount", "--lazy", str(inside)], check=True)
    shutil.rmtree(folder)
