"""Buckets of pruned weights: gradients, state, sums and updates of the entries that are kept, and of no others.

In come masks and the parameters of a bucket; out comes a bucket that everything else takes for a dense one. Start at
`flat.py`; `trial.py` refuses optimizers that need whole tensors, `entries.py` takes state from one form to the other.
"""

from runtime.kept.entries import expanded, fitting
from runtime.kept.flat import KeptFlat, flat_maker
from runtime.kept.run import check_halved, check_kept, keep_masks, masks_of, pruned

__all__ = [
    "KeptFlat",
    "check_halved",
    "check_kept",
    "expanded",
    "fitting",
    "flat_maker",
    "keep_masks",
    "masks_of",
    "pruned",
]
