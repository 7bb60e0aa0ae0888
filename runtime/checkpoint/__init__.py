"""Checkpoints outlive a plan: parameters and optimizer state by name, their integrity, and pretrained weights.

In come tensors by name from each rank; out comes a folder of safetensors files that any other plan can read.
Start at `checkpoint.py`; `integrity.py` judges what is on disk without torch, `writer.py` writes, and says how
often.
"""

from runtime.checkpoint.checkpoint import Checkpoint, latest
from runtime.checkpoint.integrity import PREFIX, Facts, complete, folder_of, last_sound, remove_partial
from runtime.checkpoint.pretrained import read
from runtime.checkpoint.tensor_file import Elements
from runtime.checkpoint.writer import (
    CheckpointPart,
    CheckpointWriter,
    steps_between,
    write_initial,
    write_s,
)

__all__ = [
    "PREFIX",
    "Checkpoint",
    "CheckpointPart",
    "CheckpointWriter",
    "Elements",
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
