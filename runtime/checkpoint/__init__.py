"""Checkpoints outlive a plan: parameters and optimizer state by name, their integrity, and pretrained weights.

In come tensors by name from each rank; out comes a folder of safetensors files that any other plan can read.
Start at `checkpoint.py`, which reads under any plan (`runtime.rank` loads what it gives), and `writer.py`; `integrity.py` judges what is on disk without torch,
`storage.py` says how often to write, and keeps copies in other places.
"""

from runtime.checkpoint.checkpoint import Checkpoint, latest, of_run
from runtime.checkpoint.integrity import (
    INDEX,
    PREFIX,
    Facts,
    complete,
    flaw,
    folder_of,
    last_sound,
    newest,
    remove,
    remove_partial,
)
from runtime.checkpoint.part import CheckpointPart, write_alone, write_initial
from runtime.checkpoint.pretrained import numbers, read
from runtime.checkpoint.storage import Copies, Keeping, steps_between, write_s
from runtime.checkpoint.tensor_file import Elements
from runtime.checkpoint.writer import CheckpointWriter

__all__ = [
    "INDEX",
    "PREFIX",
    "Checkpoint",
    "CheckpointPart",
    "CheckpointWriter",
    "Copies",
    "Elements",
    "Facts",
    "Keeping",
    "complete",
    "flaw",
    "folder_of",
    "last_sound",
    "latest",
    "newest",
    "numbers",
    "of_run",
    "read",
    "remove",
    "remove_partial",
    "steps_between",
    "write_alone",
    "write_initial",
    "write_s",
]
