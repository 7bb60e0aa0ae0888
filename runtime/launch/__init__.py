"""A run as a value, wherever it runs."""

from runtime.launch.compare_with_one_process import check_text, checked
from runtime.launch.finished import as_dict, comparison, comparison_text, drift, observation, record
from runtime.launch.handle import Handle, has_slurm, launch, launch_inline, launch_local, launch_slurm
from runtime.launch.runs import Runs, runs
from runtime.launch.script import Run
from runtime.launch.status import Status, cancel, lines_of, of, status_text

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
    "drift",
    "has_slurm",
    "launch",
    "launch_inline",
    "launch_local",
    "launch_slurm",
    "lines_of",
    "observation",
    "of",
    "record",
    "runs",
    "status_text",
]
