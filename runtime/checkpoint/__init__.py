"""Checkpoints outlive a plan: parameters and optimizer state by name, their integrity, and pretrained weights.

In come tensors by name from each rank; out comes a folder of safetensors files that any other plan can read.
Start at `checkpoint.py`; `integrity.py` judges what is on disk without torch, `interval.py` says how often to
write.
"""

from runtime.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointPart,
    CheckpointWriter,
    latest,
    write_initial,
)
from runtime.checkpoint.integrity import PREFIX, Facts, complete, folder_of, last_sound, remove_partial
from runtime.checkpoint.interval import steps_between, write_s
from runtime.checkpoint.pretrained import read

__all__ = [
    "PREFIX",
    "Checkpoint",
    "CheckpointPart",
    "CheckpointWriter",
    "Facts",
    "complete",
    "folder_of",
    "last_sound",
    "latest",
    "read",
    "remove_partial",
    "steps_between",
    "write_initial",
    "write_s",
]
