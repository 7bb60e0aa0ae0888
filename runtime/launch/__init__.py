"""A launched run as a value, on this machine or under SLURM.

In: a plan and settings, for `launch`; or a run folder, for `of` (status), `runs` and `record`. Out: a
`Handle` to wait for, ask and cancel; a `Status`; a run compared with its plan. `Run` is for a user's own
training script.
Start reading in `handle.py`, then `status.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.doors import later
from runtime.launch.compare_with_one_process import check_text, checked
from runtime.launch.finished import as_dict, comparison, comparison_text, drift, notes, observation, record
from runtime.launch.handle import (
    Handle,
    device_for,
    go_on,
    handle_of,
    has_slurm,
    launch,
    launch_inline,
    launch_local,
    launch_slurm,
    rescale,
)
from runtime.launch.logs import followed, lines_of
from runtime.launch.status import Runs, Status, cancel, of, runs, status_text

if TYPE_CHECKING:
    from runtime.launch.script import Run

__all__ = [
    "Handle",
    "Run",
    "Runs",
    "Status",
    "as_dict",
    "cancel",
    "check_text",
    "checked",
    "comparison",
    "comparison_text",
    "device_for",
    "drift",
    "followed",
    "go_on",
    "handle_of",
    "has_slurm",
    "launch",
    "launch_inline",
    "launch_local",
    "launch_slurm",
    "lines_of",
    "notes",
    "observation",
    "of",
    "record",
    "rescale",
    "runs",
    "status_text",
]

# `Run` needs torch. Without torch, `status`, `logs` and `cancel` answer at once.
__getattr__ = later(__name__, {"script": ("Run",)})
