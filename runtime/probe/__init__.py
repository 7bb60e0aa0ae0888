"""What devices and links can do."""

from runtime.probe.main import by_srun, local
from runtime.probe.probe import Found, cluster_of, shared, slow

__all__ = [
    "Found",
    "by_srun",
    "cluster_of",
    "local",
    "shared",
    "slow",
]
