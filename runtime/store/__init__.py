"""Keeps the samples of a dataset in the memory of the nodes, and hands each step the very samples that it would read.

In: a rank's `Batches`, and what every rank wants of a step. Out: `Store`, which the batches read in the place of the
dataset. Each node reads a contiguous part of the dataset once. Which samples a step takes is known for ever, so nodes
exchange those of a window of steps while they train on the window before.
Start reading in `opening.py` and `store.py`; `routes.py` says who needs what, and `samples.py` makes bytes of a sample.
"""

from runtime.store.opening import StoreAsked
from runtime.store.samples import refuse_unstorable
from runtime.store.store import Store, StoreCounts

__all__ = ["Store", "StoreAsked", "StoreCounts", "refuse_unstorable"]
