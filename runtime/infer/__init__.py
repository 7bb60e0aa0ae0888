"""Applies a trained model to volumes larger than memory: exactly, box by box, or blended where that cannot be.

In: an `InferRequest` with a workload, its weights and a volume. Out: another volume, written by any number of processes
that share its boxes through a folder (`runtime.leases`), and the state of that folder.
Start reading in `start.py` (what is settled), then `model.py` (what is computed for a box), `work.py` (who computes
which box), `chunk.py` (how large a box is) and `storage.py` (where numbers lie).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from runtime.infer.folder import InferFolder, InferStatus, status_of, status_text

if TYPE_CHECKING:
    from runtime.infer.start import InferPlan, InferRequest, prepared
    from runtime.infer.work import queue, run

__all__ = [
    "InferFolder",
    "InferPlan",
    "InferRequest",
    "InferStatus",
    "prepared",
    "queue",
    "run",
    "status_of",
    "status_text",
]

__getattr__ = later(
    __name__,
    {
        "start": ("InferPlan", "InferRequest", "prepared"),
        "work": ("queue", "run"),
    },
)
