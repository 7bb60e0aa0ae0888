"""The memory of a node that its ranks share, and how much of a host there is.

The memory is a file without a name, which its maker's process holds: nothing is left of it when the processes end,
however they end.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from planner.arrays import IntArray
from planner.errors import BadInput

KEPT_FREE = 0.1  # of the memory that is free: for everything else
_HEAD = 4096  # bytes: which window is ready, and which each rank trains on
_CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the memory of this host that a store may take, within what a container or a job may.

    Args: `meminfo` and `cgroup` are where Linux tells.
    """
    available = next(
        int(line.split()[1]) * 1024
        for line in meminfo.read_text().splitlines()
        if line.startswith("MemAvailable")
    )
    for most, used in _CGROUPS:
        with suppress(OSError, ValueError):  # a limit may be the word "max"
            available = min(available, int((cgroup / most).read_text()) - int((cgroup / used).read_text()))
    return max(0, int(available * (1 - KEPT_FREE)))


class SharedMemory:
    """Memory of a node, as one of its ranks sees it: the head, the node's part of the samples, and two windows."""

    def __init__(self, file: int, part_bytes: int, window_bytes: int) -> None:
        self._map = mmap.mmap(file, 0)
        self._view = memoryview(self._map)
        self.head: IntArray = np.frombuffer(self._map, np.int64, _HEAD // 8)
        self._part = slice(_HEAD, _HEAD + part_bytes)
        self._windows = [slice(_HEAD + part_bytes + i * window_bytes, None) for i in (0, 1)]

    @property
    def part(self) -> memoryview:
        """Returns the node's own part of the samples."""
        return self._view[self._part]

    def window(self, number: int) -> memoryview:
        """Returns the place of a window; every other one has the same.

        Args: `number` counts windows.
        """
        return self._view[self._windows[number % 2]]


class Growing:
    """The memory of a node while its part is read, in the process that reads."""

    def __init__(self) -> None:
        self.file = os.memfd_create("shardwright-samples")
        os.ftruncate(self.file, _HEAD)
        os.lseek(self.file, _HEAD, os.SEEK_SET)

    @property
    def path(self) -> str:
        """Returns the name by which other processes of the host open it."""
        return f"/proc/{os.getpid()}/fd/{self.file}"

    def add(self, data: bytes) -> None:
        """Writes the next sample.

        Args: `data` are its bytes.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self.file, view) :]

    def whole(self, part_bytes: int, window_bytes: int) -> SharedMemory:
        """Returns the memory with room for two windows.

        Args: `part_bytes` have been written; a window takes `window_bytes` at most.
        """
        os.ftruncate(self.file, _HEAD + part_bytes + 2 * window_bytes)
        return SharedMemory(self.file, part_bytes, window_bytes)


def opened(path: str, part_bytes: int, window_bytes: int) -> SharedMemory:
    """Returns the memory that another process of this node has made.

    Args: `path` is the name that `Growing` gives; sizes are those of `whole`.
    Raises: BadInput where this process may not see it.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except OSError as error:
        raise BadInput(
            f"the memory of the node's other ranks cannot be opened: {error.strerror}",
            where="store",
            allowed="ranks of a node in one container, or no store",
        ) from error
    try:
        return SharedMemory(file, part_bytes, window_bytes)
    finally:
        os.close(file)
