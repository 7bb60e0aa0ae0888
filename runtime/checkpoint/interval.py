"""Says how many steps to do between checkpoints, when machines fail at a given rate.

With cost C of a checkpoint and mean time M between failures, Young's interval is sqrt(2 C M). Daly's keeps
the next terms: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2 M, and M otherwise.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

SAMPLE_BYTES = 32 * 2**20


def interval_s(cost_s: float, failures_every_s: float) -> float:
    """Returns Daly's interval between checkpoints, in seconds.

    Args: `cost_s` is the time that a checkpoint takes; `failures_every_s` the mean time between failures.
    """
    ratio = cost_s / (2 * failures_every_s)
    if ratio >= 1:
        return failures_every_s
    young = math.sqrt(2 * cost_s * failures_every_s)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def steps_between(step_s: float, cost_s: float, failures_every_s: float) -> int:
    """Returns how many steps to do between checkpoints, at least one.

    Args: `step_s` is the time of a step, `cost_s` that of a checkpoint, `failures_every_s` the mean between
        failures.
    """
    return max(1, round(interval_s(cost_s, failures_every_s) / max(step_s, 1e-9)))


def write_s(folder: Path, size_bytes: int) -> float:
    """Estimates the time to put some bytes on disk, from a file of 32 MiB.

    Args: `folder` lies on that disk.
    Returns: seconds for `size_bytes`.
    """
    block = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = time.perf_counter()
        for _ in range(SAMPLE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        took = time.perf_counter() - begin
    return took * size_bytes / SAMPLE_BYTES
