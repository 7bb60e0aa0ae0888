"""Rehearses a plan: each distinct rank runs alone on one device, before anything is queued.

In: a plan and a device. Out: a `Rehearsal` with the measured time of every action, the peak of memory of
every rank, and the step that follows from them.
Start reading in `rehearse.py`; `fake_world.py` has the ranks that are not there.
"""

from runtime.rehearse.rehearse import rehearse
from runtime.rehearse.report import Rehearsal, as_dict, text

__all__ = [
    "Rehearsal",
    "as_dict",
    "rehearse",
    "text",
]
