"""Checkpoints outlive a plan: parameters and optimizer state by name, their integrity, and pretrained weights.

In come tensors by name from each rank; out comes a folder of safetensors files that any other plan can read.
Start at `checkpoint.py`; `integrity.py` judges what is on disk without torch, `interval.py` says how often to
write, and `tensor_files.py` reads and writes safetensors.
"""

from runtime.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointPart,
    CheckpointWriter,
    latest,
    remove_partial,
    write_initial,
)
from runtime.checkpoint.integrity import PREFIX, Facts, complete, last_sound
from runtime.checkpoint.interval import steps_between, write_s
from runtime.checkpoint.tensor_files import read

__all__ = [
    "PREFIX",
    "Checkpoint",
    "CheckpointPart",
    "CheckpointWriter",
    "Facts",
    "complete",
    "last_sound",
    "latest",
    "read",
    "remove_partial",
    "steps_between",
    "write_initial",
    "write_s",
]
