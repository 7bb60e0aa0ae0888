"""A run in processes of this machine."""

from runtime.local.run import LocalBackend, start
from runtime.local.supervise import START_S, be_a_rank, supervise

__all__ = ["START_S", "LocalBackend", "be_a_rank", "start", "supervise"]
