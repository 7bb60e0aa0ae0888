"""A run in processes of this machine."""

from runtime.local.run import LocalRun, launch
from runtime.local.supervise import START_S, be_a_rank, supervise

__all__ = [
    "START_S",
    "LocalRun",
    "be_a_rank",
    "launch",
    "supervise",
]
