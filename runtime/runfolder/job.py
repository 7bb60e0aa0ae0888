"""The settings of a run that are not in its plan. The launcher writes them to `job.json`, and ranks read
them.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Literal, get_args, get_type_hints

from planner.errors import BadInput
from planner.files import read_record
from runtime.runfolder.durable import write_durably
from runtime.runfolder.paths import Paths

Content = Literal["layers", "sleep"]
START_S = 600.0  # until the first beat of a rank: capturing and loading


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of one run beside its plan."""

    steps: int  # of the whole run; a resumed one does those that are missing
    seed: int = 0
    content: Content = "layers"  # sleep: stages sleep for their planned times
    weights: str = ""  # safetensors to begin with; build()'s own when empty
    kept: str = ""  # masks of pruned weights; those of the run folder when empty
    clip_norm: float | None = None
    clip_by: Literal["step", "previous"] = "step"  # whose norm that limits
    save_every: int = 0  # steps; 0 saves at the end only
    keep: int = 2  # complete checkpoints
    eval_every: int = 0  # steps between evaluations of valid_dataset(); 0 for none
    best_by: str = "loss"  # the value of an evaluation that tells what is best, and :max where more is better
    keep_best: bool = False  # a checkpoint of the best evaluation, beside the newest
    patience: int = 0  # evaluations without a better one, after which the training stops; 0 for never
    ema: float | None = None  # decay of an average of the parameters, which is what is evaluated
    grad_norm: bool = False  # whether the gradients' norm is recorded where nothing else needs it
    keep_every: int = 0  # steps; checkpoints of their multiples stay for ever; 0 for none
    copies: str = ""  # where checkpoints are copied to, any path that fsspec knows
    threads: int = 1  # of each rank
    memory_step: int = 0  # the step whose peak of memory is measured, slowly; 0 for none
    profile_step: int = 0  # the step that torch.profiler records; 0 for none
    data_workers: int | None = 0  # processes of a rank that read samples; None: as many as hide it
    pin_memory: bool | None = None  # of batches on the host; by default where the device is cuda
    samples: str = ""  # an index file of the samples to train on; all when empty
    store: Literal["none", "ram"] = "none"  # where samples are kept: ram is the memory of the nodes
    store_steps: int = 0  # of a window of the store; 0: as many as the memory has room for
    drop_last: bool = False  # whether an epoch ends with its last whole step
    shards: int = 1  # of the stream of samples: each has every so many-th step
    shard: int = 0  # the one that this run trains on
    device: Literal["cpu", "cuda"] = "cpu"
    deadline_s: float = 60.0  # without any progress of a rank
    rendezvous: str = "file"  # where ranks meet, in the words of `meeting`
    script: tuple[str, ...] = ()  # a user's own, with its arguments, instead of the workload's training
    restarts: int = 0  # tries after a failure of a run here that leave no new checkpoint
    # what ranks do when SLURM needs their nodes for others: end after a step and a checkpoint, or where they are
    gives_way: Literal["checkpoint", "at once"] = "checkpoint"
    generation: int = 0  # counts restarts, so that the rendezvous of one is never met by another

    @property
    def limit(self) -> float | None:
        """Returns the norm that gradients are clipped to; infinite where it is only to be recorded."""
        return float("inf") if self.clip_norm is None and self.grad_norm else self.clip_norm

    @property
    def patience_s(self) -> float:
        """Returns how long a call waits for other ranks: longer than who watches them, and names the one to blame."""
        return max(1.2 * START_S, 2 * self.deadline_s)

    def write(self, paths: Paths) -> None:
        """Writes `job.json` in the run folder, whole or not at all."""
        write_durably(paths, paths.job, json.dumps(asdict(self), indent=1))


MOST = 10**12
MOST_READERS = 4096  # of a rank
MOST_SHARDS = 10**5
_WHOLE = {  # the least and the most
    "steps": (1, MOST),
    "seed": (0, 2**63 - 1),
    "save_every": (0, MOST),
    "keep": (1, MOST),
    "eval_every": (0, MOST),
    "patience": (0, MOST),
    "keep_every": (0, MOST),
    "threads": (1, 4096),
    "memory_step": (0, MOST),
    "profile_step": (0, MOST),
    "data_workers": (0, MOST_READERS),
    "store_steps": (0, MOST),
    "shards": (1, MOST_SHARDS),
    "shard": (0, MOST_SHARDS - 1),
    "restarts": (0, 10**6),
    "generation": (0, MOST),
}


def check(job: Job) -> Job:
    """Checks every field of a job.

    Returns: the same job.
    Raises: BadInput with the name of the wrong field and the values allowed.
    """
    for name, (least, most) in _WHOLE.items():
        value = getattr(job, name)
        if name == "data_workers" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadInput(
                f"{name} is {value!r}", where="launch", allowed=f"a whole number, {least} to {most}"
            )
    if job.shard >= job.shards:
        raise BadInput(f"shard is {job.shard}", where="launch", allowed=f"0 to {job.shards - 1}")
    for name in ("deadline_s", "clip_norm", "ema"):
        value = getattr(job, name)
        wrong = isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf")
        if value is not None and wrong:
            raise BadInput(f"{name} is {value!r}", where="launch", allowed="a number above 0")
    if job.ema is not None and not 0 < job.ema < 1:
        raise BadInput(
            f"ema is {job.ema!r}", where="launch", allowed="a decay between 0 and 1, such as 0.999"
        )
    for name in ("weights", "kept", "copies", "samples"):
        if not isinstance(getattr(job, name), str):
            raise BadInput(f"{name} is {getattr(job, name)!r}", where="launch", allowed="a path")
    if not isinstance(job.best_by, str) or not re.fullmatch("[^:]+(:min|:max)?", job.best_by):
        raise BadInput(f"best_by is {job.best_by!r}", where="launch", allowed="NAME, NAME:min or NAME:max")
    if job.script and job.eval_every:
        raise BadInput("eval_every with a script", where="launch", allowed="run.evaluate() in the script")
    if not job.eval_every and (job.patience or job.keep_best):
        wrong_name = "patience" if job.patience else "keep_best"
        raise BadInput(f"{wrong_name} without evaluations", where="launch", allowed="eval_every, too")
    for name in ("content", "device", "clip_by", "store", "gives_way"):
        allowed = get_args(get_type_hints(Job)[name])
        if getattr(job, name) not in allowed:
            raise BadInput(f"{name} is {getattr(job, name)!r}", where="launch", allowed=", ".join(allowed))
    check_rendezvous(job.rendezvous)
    return job


def read(paths: Paths) -> Job:
    """Returns the job of a run folder.

    Raises: BadInput where `paths` is no run folder.
    """
    try:
        return check(read_record(Job, paths.job))
    except BadInput as error:
        raise BadInput(
            f"is no run folder: {error.what}", where=str(paths.root), allowed=error.allowed
        ) from error


FILE, TORCHRUN = "file", "torchrun"

_TCP = re.compile(r"tcp(:[A-Za-z0-9_.-]{1,15})?")


def check_rendezvous(how: str) -> str:
    """Checks the words that say where ranks meet.

    Args: `how` is `file`, `torchrun`, `tcp`, or `tcp:` and the name of a network interface.
    Returns: the same words.
    Raises: BadInput for any other.
    """
    if how not in (FILE, TORCHRUN) and not _TCP.fullmatch(how):
        raise BadInput(
            f"ranks cannot meet at '{how}'", where="rendezvous", allowed="file, tcp or tcp:INTERFACE"
        )
    return how
