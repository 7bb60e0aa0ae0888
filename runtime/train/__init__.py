"""Training on one rank, and the run folder that is prepared before any rank starts.

In: a plan with its captured workload (`Model`) and a `Job`. Out: a prepared run folder (`prepare`), and a
`Training` that does the steps, records metrics and writes checkpoints. `StepLoop` is the same for a user's
own script.
Start reading in `training.py`; `prepare.py` checks everything that can be known beforehand.
"""

from runtime.train.prepare import Model, job_of, prepare, prepare_folder, workload_of
from runtime.train.script import StepLoop, launched, open_inline, run_script, train_inline
from runtime.train.stop import Agreed, NoPulse, block, listen
from runtime.train.training import sleep_rank, train_rank, training_of

__all__ = [
    "Agreed",
    "Model",
    "NoPulse",
    "StepLoop",
    "block",
    "job_of",
    "launched",
    "listen",
    "open_inline",
    "prepare",
    "prepare_folder",
    "run_script",
    "sleep_rank",
    "train_inline",
    "train_rank",
    "training_of",
    "workload_of",
]
