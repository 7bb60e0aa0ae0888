"""Runs in processes of this machine.

In: a plan and settings, for `start`. Out: a `LocalBackend` that waits for the run and cancels it. `supervise`
forks processes and watches them, and is used by the probe too.
Start reading in `run.py`; `main.py` is the supervisor process, `supervise.py` its watch over the ranks.
"""

from runtime.local.run import NO_GPUS, LocalBackend, afresh, start
from runtime.local.supervise import (
    STACKS_S,
    RankWatch,
    be_a_rank,
    fork_ranks,
    supervise,
)

__all__ = [
    "NO_GPUS",
    "STACKS_S",
    "LocalBackend",
    "RankWatch",
    "afresh",
    "be_a_rank",
    "fork_ranks",
    "start",
    "supervise",
]
