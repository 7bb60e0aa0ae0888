"""Runs as SLURM jobs, and layers measured by SLURM jobs.

In: a plan, a `Job`, and the `Options` of a site and user. Out: a prepared run folder with its batch script
(`prepared`), a queued job (`queue`), and a `SlurmBackend` that waits for it and cancels it.
Start reading in `submit.py` and `job.py`; `script.py` writes the batch script. `supervisor.py` runs in the job, and `task.py` is one rank of it.
"""

from runtime.slurm.commands import SlurmError, answers, ask, hostnames
from runtime.slurm.job import SlurmBackend, backend_of, queue, test_only
from runtime.slurm.job_folder import Elastic, parse, refuse
from runtime.slurm.limits import known
from runtime.slurm.measure_jobs import run
from runtime.slurm.options import NAMED, Options, load, over, pairs, site_file
from runtime.slurm.script import array_text, text
from runtime.slurm.state import QUEUED, RUNNING, Queued, of, somebody_cancelled
from runtime.slurm.submit import cancel, container_warnings, prepared, queue_script, request, stop
from runtime.slurm.task_layout import read

__all__ = [
    "NAMED",
    "QUEUED",
    "RUNNING",
    "Elastic",
    "Options",
    "Queued",
    "SlurmBackend",
    "SlurmError",
    "answers",
    "array_text",
    "ask",
    "backend_of",
    "cancel",
    "container_warnings",
    "hostnames",
    "known",
    "load",
    "of",
    "over",
    "pairs",
    "parse",
    "prepared",
    "queue",
    "queue_script",
    "read",
    "refuse",
    "request",
    "run",
    "site_file",
    "somebody_cancelled",
    "stop",
    "test_only",
    "text",
]
