"""The supervisor process of a local run: `python -P -m runtime.local.main FOLDER PARENT [RANK]`.

PARENT is the process whose end ends the run, or 0 for a detached run. The supervisor begins when it reads a line, since
the run folder is prepared while it loads its libraries; where none comes, there is no run. With RANK this is the process
of one rank, which starts with nothing of the supervisor's.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from planner import files
from planner import plan as plans
from planner.capture import from_data, origin_of
from planner.errors import BadInput
from planner.plan import Plan
from planner.workload import DAMAGES
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.local.run import afresh, digests, versions
from runtime.local.supervise import be_a_rank, supervise
from runtime.messages import in_order_of
from runtime.runfolder import Attempt, Job, Paths, die_with_parent, note_attempt, result_of, tell
from runtime.train import Model, run_script, sleep_rank, train_rank, workload_of

MOST_GRAPH_BYTES = 2**28  # of a captured model, without its tensors
LOGGED = os.O_WRONLY | os.O_APPEND | os.O_CREAT
STATES = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended"}


class EndSignals:
    """Remembers the first SIGINT or SIGTERM.

    The handler only sets a flag, so it cannot interrupt the supervisor while it updates its table of
    processes.
    """

    def __init__(self, parent: int) -> None:
        self._parent = parent  # 0 where the run may outlive it
        self._number: signal.Signals | None = None

    def listen(self) -> None:
        """Takes over SIGINT and SIGTERM of this process."""
        for number in STATES:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._number = self._number or signal.Signals(number)

    def __call__(self) -> tuple[str, str] | None:
        """Returns the state and the cause with which the run is to end, None before any signal."""
        if self._number is None:
            return None
        if self._number == signal.SIGINT:
            cause = "by Ctrl-C"
        elif self._parent and os.getppid() != self._parent:
            cause = "the process that launched it is gone"
        else:
            cause = f"it was told to, by {self._number.name}"
        return STATES[self._number], cause


def _gone(paths: Paths) -> tuple[str, str] | None:
    """Returns the end of a run that has no folder to write to, so that its ranks wait for none of them."""
    gone = runfolder.removed(paths)
    return None if gone is None else (gone.state, gone.cause)


def main(folder: str, parent: str) -> int:
    """Runs all attempts of a run and writes its outcome and result.

    Args: `parent` is the number of the process that launched the run, "0" where the run may outlive it.
    Returns: the exit status of the run.
    """
    told = EndSignals(int(parent))
    told.listen()
    if int(parent):
        die_with_parent(int(parent), signal.SIGTERM)
    paths = Paths(Path(folder))
    job, plan = runfolder.read(paths), plans.load(paths.plan)
    torch.set_num_threads(1)  # a process that has run threads cannot be forked
    model = None if job.content == "sleep" or job.device == "cuda" else handed(plan, paths)
    tries: list[Attempt] = []
    while True:
        again = replace(job, generation=job.generation + len(tries))
        again.write(paths)
        paths.clear_marks(again.generation)
        if model is not None:
            checkpoints.last_sound(paths.checkpoints, partial(print, flush=True))
        begun = Attempt(
            generation=again.generation,
            nodes=[socket.gethostname()],
            begin_s=time.time(),
            checkpoint=checkpoints.newest(paths.checkpoints),
        )
        tries.append(begun)
        note_attempt(paths, begun)
        ranks = rank_main(paths, again, plan, model)
        outcome = supervise(paths, len(plan.places), job.deadline_s, ranks, lambda: told() or _gone(paths))
        if (gone := runfolder.removed(paths)) is not None:
            print(gone.cause, flush=True)
            return gone.status
        end = {"state": outcome.state, "cause": outcome.cause, "rank": outcome.rank}
        note_attempt(paths, replace(begun, end_s=time.time(), **end))  # type: ignore[arg-type]
        spent = len(runfolder.in_vain(tries, checkpoints.newest(paths.checkpoints))) > job.restarts
        if outcome.state in ("done", *STATES.values()) or spent or not job.restarts:
            break
        print(f"{outcome.cause}; starting again from the last complete checkpoint", flush=True)
        checkpoints.remove_partial(paths.checkpoints)
    tell(paths, outcome)
    paths.clear_marks(again.generation + 1)
    result_of(paths, len(plan.places), outcome)  # here, since nobody may wait for a run that is detached
    return outcome.status


def handed(plan: Plan, paths: Paths) -> Model:
    """Returns a plan with its workload and the captured model that the launcher wrote into the run folder.

    The model is captured here where none was written, or where torch or a file of the user's is another since.
    """
    workload = workload_of(plan)
    with suppress(BadInput, OSError, SafetensorError, *DAMAGES):
        told, data = files.read_json(paths.captured, max_bytes=MOST_GRAPH_BYTES)
        if told["versions"] == versions() and told["code"] == digests(told["code"]):
            found = from_data(data, load_file(paths.constants))
            found = replace(found, origin=origin_of(workload), alone=told["alone"])
            if found.graph.fingerprint == plan.model.fingerprint and found.graph.serves(plan.batch.micro):
                return Model(plan, workload, in_order_of(plan, found))
    return Model.of(plan, workload)


def rank_main(paths: Paths, job: Job, plan: Plan, model: Model | None) -> Callable[[int], None]:
    """Returns the function that the process of a rank runs, given the rank.

    Args: `model` is None for a run whose stages sleep, and for one on GPUs, where each rank captures its own.
    """
    if job.content == "sleep":
        return partial(sleep_rank, paths, job, plan)
    if job.device == "cuda":
        return partial(afresh, paths)
    assert model is not None
    return partial(_of_job(job), paths, job, model)


def _of_job(job: Job) -> Callable[[Paths, Job, Model, int], None]:
    return run_script if job.script else train_rank


def be_alone(folder: str, parent: str, rank: str) -> NoReturn:
    """Is one rank of a run, which reads all that it needs in the run folder.

    Args: `parent` is the number of the supervisor's process, with which this one ends.
    """
    paths = Paths(Path(folder))

    def run() -> int:
        job, plan = runfolder.read(paths), plans.load(paths.plan)
        if job.device == "cuda":
            take_gpu(os.environ, int(rank), len(plan.places), torch.cuda.device_count())
        torch.set_num_threads(job.threads)
        _of_job(job)(paths, job, handed(plan, paths), int(rank))
        return 0

    be_a_rank(paths, int(rank), int(parent), run)


def take_gpu(environment: MutableMapping[str, str], rank: int, ranks: int, gpus: int) -> None:
    """Shows this process one GPU alone. Where there are fewer than ranks, some have one in common, to try a plan.

    NCCL refuses two ranks of one host on one GPU, and so each is told to be another host.
    Args: variables of `environment` are set.
    """
    visible = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    environment["CUDA_VISIBLE_DEVICES"] = (visible or [str(gpu) for gpu in range(gpus)] or ["0"])[
        rank % max(1, gpus)
    ]
    if ranks > gpus:
        environment.setdefault("NCCL_HOSTID", f"rank-{rank}-of-{os.getppid()}")
        print(f"{ranks} ranks share {gpus} GPUs: their times say little", flush=True)


def wait_for(folder: str) -> None:
    """Waits until the run folder is prepared, and writes in its log from then on. Without a run this process ends."""
    importlib.import_module("torch._dynamo")  # which the first fake tensor loads
    if not sys.stdin.readline():
        os._exit(0)
    log = Paths(Path(folder)).root / "logs" / "supervisor.log"
    for number, name, flags in ((0, Path(os.devnull), os.O_RDONLY), (1, log, LOGGED), (2, log, LOGGED)):
        file = os.open(name, flags, 0o600)
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        be_alone(*sys.argv[1:])
    wait_for(sys.argv[1])
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # at once: taking a large model apart may last for seconds
