"""What other processes take of this machine, so that a time that was measured beside them can say so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

NOTABLE_SHARE = 0.1  # less is what a machine does beside any work


class Ticks(NamedTuple):
    """Seconds of processor time since the machine started."""

    busy: float
    all: float


class OtherLoad:
    """The load of others on this machine from when this is made."""

    def __init__(self, ticks: Ticks | None = None) -> None:
        self._before = ticks or machine_ticks()

    def share(self, own_s: float, ticks: Ticks | None = None) -> float:
        """Returns the share of the machine's processor time that others took since then.

        Args: `own_s` is the processor time that this work took meanwhile, with its children.
        Returns: 0 to 1; 0 where the machine does not tell.
        """
        now = ticks or machine_ticks()
        passed = now.all - self._before.all
        others = now.busy - self._before.busy - own_s
        return min(1.0, max(0.0, others / passed)) if passed > 0 else 0.0


def machine_ticks(path: Path = Path("/proc/stat")) -> Ticks:
    """Returns the processor time of all processes; zeros where the machine does not tell.

    Args: `path` is the file that Linux keeps it in.
    """
    try:
        first = path.read_text().partition("\n")[0].split()[1:9]
        user, nice, system, idle, wait, *rest = (int(x) / os.sysconf("SC_CLK_TCK") for x in first)
    except (OSError, ValueError):
        return Ticks(0.0, 0.0)
    busy = user + nice + system + sum(rest)
    return Ticks(busy, busy + idle + wait)
