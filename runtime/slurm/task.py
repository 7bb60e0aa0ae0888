"""One task of srun: `python -P -m runtime.slurm.task FOLDER` runs one rank and watches it.

The keeper is this process. The rank is forked from it before torch is imported. The keeper sees its rank end
or stand still, writes that down for the supervisor of the job, and hands signals on. Only when its node goes
down, keeper and rank end without a word.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from planner import plan as plans
from planner.errors import ShardwrightError
from planner.plan import Plan
from runtime import runfolder
from runtime.local import STACKS_S, be_a_rank
from runtime.runfolder import (
    BEAT,
    LOG_LOOK_S,
    START_S,
    STOPPED,
    Heartbeat,
    Job,
    Outcome,
    Paths,
    StopWatch,
    WatchClock,
    log_end,
    stands_at,
)
from runtime.slurm import task_layout
from runtime.slurm.rank_records import RankRecord
from runtime.slurm.task_layout import Granted

POLL_S = 0.05
PATIENCE_S = 5.0
LOOK_S = 0.5  # at whether another rank stands still


def main(folder: str) -> int:
    """Runs the rank of this task.

    Args: `folder` is the run folder.
    Returns: the exit status for srun.
    """
    paths = Paths(Path(folder))
    try:
        here = task_layout.read(os.environ)
        job, plan = _job_of(runfolder.read(paths), os.environ), plans.load(paths.plan)
        task_layout.check(here, plan.places)
    except ShardwrightError as error:
        print(f"error: {os.uname().nodename}: {error}", file=sys.stderr, flush=True)
        return error.status
    os.environ.update(task_layout.exported(here, plan.places))
    heart = os.memfd_create("heart")
    os.ftruncate(heart, BEAT.size)
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # until the keeper and the rank listen to it
    pid = os.fork()
    if pid == 0:
        beats = Heartbeat(Path(f"/proc/self/fd/{heart}"), 0, 1)
        train = partial(_train, paths, job, plan, here.rank, beats)
        be_a_rank(paths, here.rank, parent, train, partial(_is_followed, paths, job))
    keeper = Keeper(paths, job, here, heart, pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    status = keeper.keep()
    if here.rank == 0 and keeper.done and job.rendezvous == runfolder.TORCHRUN:
        runfolder.tell(paths, Outcome("done"))  # no supervisor does, and all ranks have left together
    return status


def _job_of(job: Job, environment: Mapping[str, str]) -> Job:
    """Returns the job with the rendezvous of torchrun, where torchrun has started this task.

    torchrun starts ranks again and again; each start is a generation of its own.
    """
    if task_layout.TORCHRUN_ID not in environment:
        return job
    again = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return replace(job, rendezvous=runfolder.TORCHRUN, generation=job.generation + again)


def _is_followed(paths: Paths, job: Job) -> bool:
    """Returns whether the ranks were started anew elsewhere, as SLURM does where a node cannot be reached."""
    try:
        return runfolder.read(paths).generation > job.generation
    except (ShardwrightError, OSError):  # the folder is gone
        return False


@dataclass
class Beat:
    """The last heartbeat that the keeper has seen of its rank."""

    count: int = 0
    waiting: bool = False
    since_s: float = 0.0  # when the count last changed


class Keeper:
    """The watch over one rank, in the process from which it was forked."""

    def __init__(self, paths: Paths, job: Job, here: Granted, heart: int, pid: int) -> None:
        self._paths, self._job, self._pid = paths, job, pid
        self._heart = mmap.mmap(heart, BEAT.size)
        self._clock = WatchClock()
        self._beat = Beat(since_s=self._clock.now())
        self._stop = StopWatch(pid)
        self._record = RankRecord(
            rank=here.rank, generation=job.generation, host=here.host, node=here.node, pid=pid
        )
        self._told = 0  # the signal that came last
        self._asked = False
        self._said = False  # where it stands
        self._look_s = self._asked_s = 0.0
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._tell)

    @property
    def done(self) -> bool:
        """Returns whether the rank has trained to its end."""
        return self._record.state == "done"

    def _tell(self, number: int, frame: object) -> None:
        self._told = number

    def keep(self) -> int:
        """Watches the rank until it has ended.

        Returns: the exit status for srun.
        """
        self._record.write(self._paths)
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                return self._ended(os.waitstatus_to_exitcode(status))
            if self._stands_still():
                return self._end("hung")
            if self._another_hangs():
                self._say_where()
            if time.monotonic() > self._look_s:
                self._look_s = time.monotonic() + LOG_LOOK_S
                self._paths.bound_log(self._paths.log(self._record.rank))
                if _is_followed(self._paths, self._job):
                    return self._end("ended")
            if self._told:
                if self._told == signal.SIGTERM:
                    if self._paths.failed(self._job.generation).exists():
                        return self._end("ended")
                    if self._job.gives_way == "at once" and not self._paths.cancelled.exists():
                        return self._end("gave way")
                if not self._asked:
                    os.kill(self._pid, signal.SIGUSR1)
                self._asked, self._told = True, 0
            time.sleep(POLL_S)

    def _stands_still(self) -> bool:
        now, seen = self._clock.now(), self._beat
        count, waiting = BEAT.unpack(self._heart[:])
        if count != seen.count:
            seen.count, seen.waiting, seen.since_s = count, bool(waiting), now
        stopped_s = self._stop.seconds(now)
        if stopped_s > self._job.deadline_s:
            return True
        deadline_s = self._job.deadline_s if seen.count else START_S
        # Who waits leaves it to the keeper of the one waited for to say so first.
        return now - seen.since_s > deadline_s + (PATIENCE_S if seen.waiting and not stopped_s else 0.0)

    def _end(self, state: str) -> int:
        """Ends the rank. In a standstill each rank first writes in its log where it stands."""
        if state == "hung":
            self._paths.failed(self._job.generation).write_text(state)
            self._say_where()
            time.sleep(2 * LOOK_S)  # the keepers of those that wait see the mark, and do the same
        self._record = replace(self._record, stopped=runfolder.is_stopped(self._pid))
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return self._leave(state, -signal.SIGTERM if state == "gave way" else 1)

    def _say_where(self) -> None:
        log = self._paths.log(self._record.rank)
        at = log_end(log)
        os.kill(self._pid, signal.SIGUSR2)
        time.sleep(STACKS_S)
        self._said = True
        self._record = replace(self._record, at=stands_at(log, at, self._pid))

    def _another_hangs(self) -> bool:
        """Returns whether this rank waits for one that stands still, and has not yet said where it waits."""
        now = self._clock.now()
        if self._said or not self._beat.waiting or now - max(self._beat.since_s, self._asked_s) < LOOK_S:
            return False
        self._asked_s = now
        mark = self._paths.failed(self._job.generation)
        return mark.exists() and mark.read_text() == "hung"

    def _ended(self, status: int) -> int:
        state = {0: "done", STOPPED: "stopped"}.get(status, "failed")
        if self._paths.cause(self._record.rank).exists():  # a status of the user's own may be the same
            state = "failed"
        return self._leave(state, status)

    def _leave(self, state: str, status: int) -> int:
        if _is_followed(self._paths, self._job):  # the files are those of the ranks that came after
            return 1
        still = self._clock.now() - self._beat.since_s
        end = self._record = replace(
            self._record,
            state=state,
            status=status,
            waiting=self._beat.waiting and not self._record.stopped,  # it waits for nobody who cannot run
            still_s=round(still, 1),
        )
        mark = self._paths.failed(self._job.generation)
        fell = state == "failed" and mark.exists() and mark.read_text() == "gave way"  # with those that did
        if state in ("failed", "hung", "gave way") and not fell:
            mark.write_text(state)
        end.write(self._paths)
        # To srun a stop is no bad exit, at which it would end the others.
        return 0 if state == "stopped" else 128 - status if status < 0 else status


def _train(paths: Paths, job: Job, plan: Plan, rank: int, heart: Heartbeat) -> int:
    from runtime import train

    train.block()
    import torch

    from runtime import checkpoint as checkpoints
    from runtime.train import Model, run_script, training_of
    from runtime.world import gpu_of

    torch.set_num_threads(job.threads)
    model = Model.of(plan)
    if job.device == "cuda":
        gpu = gpu_of(plan.places[rank].slot)
        task_layout.check_memory(plan, rank, torch.cuda.get_device_properties(gpu).total_memory)
    if rank == 0:
        checkpoints.remove_partial(paths.checkpoints)
    if job.script:
        run_script(paths, job, model, rank, heart)
        return 0
    agreed = train.Agreed(paths.votes(job.generation), rank, len(plan.places))
    train.listen(agreed)
    training = training_of(paths, job, model, rank, heart)
    finished = training.run(agreed)
    training.leave()
    training.world.close()
    return 0 if finished else STOPPED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
