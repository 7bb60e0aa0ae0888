"""Shares named tasks among any number of processes through a folder: who holds which, and what is done.

In: a folder and the names of its tasks. Out: leases, each for one task that this process holds.
All is in `leases.py`. Inferences and islands share their work by it.
"""

from runtime.leases.leases import Failure, Lease, TaskCounts, Tasks

__all__ = ["Failure", "Lease", "TaskCounts", "Tasks"]
