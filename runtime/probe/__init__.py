"""Measures what devices and links can do, and makes a cluster file of it.

In: processes of this machine (`local`) or nodes of SLURM (`by_srun`). Out: `Found`, with rates, latencies and
bandwidths; `cluster_of` makes a Cluster of it, `slow` and `shared` name what is odd.
Start reading in `probe.py`; `main.py` starts the processes.
"""

from runtime.probe.main import by_srun, gpus, local
from runtime.probe.probe import Found, cluster_of, shared, slow

__all__ = [
    "Found",
    "by_srun",
    "cluster_of",
    "gpus",
    "local",
    "shared",
    "slow",
]
