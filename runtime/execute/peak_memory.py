"""The memory of a rank: bytes that stay, and the peak of what a step makes on top.

On the host a dispatch mode follows every storage from its making to its end, which is slow and therefore done
in one step only; a GPU's allocator counts by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from planner.capture import LiveBytes

T = TypeVar("T")


def with_peak(
    run: Callable[[], T], device: torch.device, kept: Sequence[Tensor], present: Iterable[Tensor] = ()
) -> tuple[T, int]:
    """Runs a function and measures the most bytes in use meanwhile.

    Args: `kept` are tensors held throughout; `present` are tensors in use now, which are not held here and
        count until they are let go.
    Returns: what the function returns, and bytes.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        done = run()
        return done, torch.cuda.max_memory_allocated(device)
    with LiveBytes(kept) as live:
        live.adopt(present)
        done = run()
    return done, static_bytes(kept) + live.peak


def static_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of tensors, each storage once, however many views of it there are.

    Args: `tensors` may share storages.
    """
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def free_bytes() -> int:
    """Returns the memory of this host for processes still to come, in bytes; what caches hold can be had."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
