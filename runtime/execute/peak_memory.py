"""What a rank holds: bytes that stay, and the peak of what a step makes on top.

On the host a dispatch mode follows every storage from its making to its end, which is slow and therefore done in one
step only; a GPU's allocator counts by itself.
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
    """What a call returns, and the most bytes in use meanwhile: `kept` throughout, `present`, which nobody may hold
    for our sake, until it is let go."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        done = run()
        return done, torch.cuda.max_memory_allocated(device)
    with LiveBytes(kept) as live:
        live.adopt(present)
        done = run()
    return done, static_bytes(kept) + live.peak


def static_bytes(tensors: Iterable[Tensor]) -> int:
    """Each storage once, however many views of it there are."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def free_bytes() -> int:
    """Of this host, for processes still to come; what caches hold can be had."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
