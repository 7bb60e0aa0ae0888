"""The user's file, found by name and called with the settings it asks for.

In go the name of a file, module or model of ours, and the text of `--set`. Out comes a `Workload` with the functions
build, batch, loss and more. Whatever is wrong in them is one BadInput with the user's own line.
Start reading in `workload.py`.
"""

from planner.workload.model_folder import (
    CALLBACKS,
    DAMAGES,
    MODEL,
    SAMPLES,
    STORED,
    VERSION,
    WEIGHTS,
    ModelFolder,
    whole_batch,
)
from planner.workload.optimizers import (
    check_optimizer,
    check_resumed,
    joint_optimizer,
    of_nothing,
    shrunk,
    whole_optimizer,
    with_parts,
    without_numbers,
)
from planner.workload.served import SOCKET, flat, reseed, seeded, spared
from planner.workload.user_file import MODELS, is_users, outside, parse_settings, where_raised
from planner.workload.workload import Workload, arguments_of, evaluable, has_raw, load

__all__ = [
    "CALLBACKS",
    "DAMAGES",
    "MODEL",
    "MODELS",
    "SAMPLES",
    "SOCKET",
    "STORED",
    "VERSION",
    "WEIGHTS",
    "ModelFolder",
    "Workload",
    "arguments_of",
    "check_optimizer",
    "check_resumed",
    "evaluable",
    "flat",
    "has_raw",
    "is_users",
    "joint_optimizer",
    "load",
    "of_nothing",
    "outside",
    "parse_settings",
    "reseed",
    "seeded",
    "shrunk",
    "spared",
    "where_raised",
    "whole_batch",
    "whole_optimizer",
    "with_parts",
    "without_numbers",
]
