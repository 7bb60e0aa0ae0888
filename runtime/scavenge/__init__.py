"""Trains on nodes of a SLURM site that nobody else uses: jobs grow, shrink and wait as nodes come and go.

In: a folder of plans of several sizes for each job, and a partition whose jobs give way to all others. Out: changes
of size, each written down before it is made, until all jobs are done. What SLURM and the run folders say is all that
is known, so the process may die and be started again.
Start reading in `daemon.py`.
"""

from runtime.scavenge.daemon import Scavenger, Tally
from runtime.scavenge.journal import Asked, IdleJournal, Note
from runtime.scavenge.partition import check_gives_way, idle_nodes

__all__ = ["Asked", "IdleJournal", "Note", "Scavenger", "Tally", "check_gives_way", "idle_nodes"]
