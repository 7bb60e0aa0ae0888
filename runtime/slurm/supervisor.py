"""The supervisor of a SLURM job: `python -P -m runtime.slurm.supervisor FOLDER --requeues N --restarts N -- srun ...`

It starts the ranks by srun. When a rank was killed, hung or vanished, it starts them again from the last
complete checkpoint. It hands on the signal that comes before the time limit. When the ranks have stopped with
a checkpoint, it has the job queued again. Errors of the ranks' own end the job with their status.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from planner import plan as plans
from planner.errors import BadInput, ShardwrightError
from planner.plan import Plan
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.runfolder import (
    STOPPED,
    Attempt,
    Outcome,
    Paths,
    attempts,
    die_with_parent,
    in_vain,
    keep_room,
    note_attempt,
    tell,
)
from runtime.slurm import commands, job_folder, rank_records, task_layout
from runtime.slurm.rank_records import StepWatch
from runtime.slurm.state import Queued

REQUEUED_S = 120.0  # SLURM ends a job that it has queued again
LISTEN_S = 0.05


@dataclass
class Supervisor:
    """The supervisor of one job: its attempts to run the ranks, and the signals that it was sent."""

    paths: Paths
    plan: Plan
    command: Sequence[str]
    requeues: int
    restarts: int
    elastic: bool
    environment: Mapping[str, str]
    is_held: Callable[[], bool]  # whether the lock of the folder is still this supervisor's
    told: set[int] = field(default_factory=set)
    abandoned: bool = False  # the last step, whose nodes do not answer

    def __post_init__(self) -> None:
        self.nodes = commands.hostnames(self.environment["SLURM_JOB_NODELIST"])
        self.restart = int(self.environment.get("SLURM_RESTART_COUNT", "0"))
        planned = len(task_layout.of(self.plan).tasks)
        if self.elastic and planned != len(self.nodes):
            print(f"{len(self.nodes)} nodes instead of {planned}: planning anew", flush=True)
            self.plan = job_folder.plan_for(self.paths, self.plan, len(self.nodes))
        self.hosts = self._hosts()

    def _hosts(self) -> list[str]:
        """Returns the host of every rank. A new plan may leave nodes of the job idle."""
        rows = task_layout.by_node(self.plan.places)
        if len(rows) > len(self.nodes) or (len(rows) < len(self.nodes) and not self.elastic):
            raise BadInput(f"the job has {len(self.nodes)} nodes", allowed=f"{len(rows)} by the plan")
        return [host for host, row in zip(self.nodes, rows, strict=False) for _ in row]

    def listen(self) -> None:
        """Takes over USR1 and TERM of this process."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._tell)

    def _tell(self, number: int, frame: object) -> None:
        self.told.add(number)

    def run(self) -> int:
        """Runs attempts until one ends for good, and writes the outcome of the run.

        Returns: the exit status of the job.
        Raises: BadInput where the job's nodes do not fit the plan.
        """
        self._say_what_was_before()
        if (before := self._starts_in_vain()) > self.requeues:
            cause = f"the job began {before} times without a new checkpoint, allowed {self.requeues + 1}"
            return self._end(Outcome("failed", cause=cause))
        while True:
            early = commands.is_preempted(self.environment)
            outcome = Outcome("stopped", cause="preempted before its ranks began") if early else self._try()
            if not self.is_held():
                print("SLURM has started the job elsewhere: this supervisor says nothing more", flush=True)
                return outcome.status
            afresh = outcome.state == "stopped" or self.abandoned or self._lost_nodes(outcome)
            afresh |= outcome.state != "done" and commands.is_preempted(self.environment)
            if afresh and self._may_go_on():
                return self._requeue(outcome)
            transient = outcome.state in ("hung", "lost") or any(status < 0 for status in outcome.exits)
            spent = self._tries_in_vain() > self.restarts or not self.restarts or self.abandoned
            if not transient or spent or self.told or self.paths.cancelled.exists():
                return self._end(outcome)
            print(f"{outcome.cause}; starting again from the last complete checkpoint", flush=True)

    def _in_vain(self) -> list[Attempt]:
        return in_vain(attempts(self.paths), checkpoints.newest(self.paths.checkpoints))

    def _starts_in_vain(self) -> int:
        """Returns how often the job was started since the last new checkpoint, but for starts that gave way at once."""
        at_once = runfolder.read(self.paths).gives_way == "at once"
        counted = [each for each in self._in_vain() if not (at_once and each.state == "interrupted")]
        return len({(each.job, each.requeues) for each in counted if self._is_ours(each)})

    def _tries_in_vain(self) -> int:
        """Returns how often ranks were started in this start of the job since the last new checkpoint."""
        return sum(self._is_ours(each) and each.requeues == self.restart for each in self._in_vain())

    def _is_ours(self, attempt: Attempt) -> bool:
        return attempt.job == self.environment["SLURM_JOB_ID"]

    def _say_what_was_before(self) -> None:
        before = attempts(self.paths)
        if before and not before[-1].state:
            cause = self._killed(before[-1]) or rank_records.who_ended(
                before[-1].nodes, "ended without a word: preempted, out of time, or killed"
            )
            note_attempt(self.paths, replace(before[-1], state="interrupted", cause=cause, end_s=time.time()))
            print(f"the attempt before: {cause}", flush=True)

    def _killed(self, last: Attempt) -> str:
        """Returns that a supervisor was killed, where the batch script has written so; else an empty text."""
        if not self.paths.killed.exists():
            return ""
        lines = self.paths.killed.read_text().splitlines()
        if f"{last.job} {last.requeues}" not in lines:
            return ""
        if last.checkpoint != checkpoints.newest(self.paths.checkpoints):
            self.paths.killed.unlink()  # the script counts those since the last new checkpoint
        return "the supervisor of the job was killed, by hand or for its memory"

    def _try(self) -> Outcome:
        job, before = runfolder.read(self.paths), attempts(self.paths)
        generation = max(job.generation, before[-1].generation + 1 if before else 0)
        replace(job, generation=generation).write(self.paths)
        for old in (*self.paths.causes(), self.paths.outcome):
            old.unlink(missing_ok=True)
        self.paths.clear_marks(generation)
        self.paths.bound_logs()
        checkpoints.last_sound(self.paths.checkpoints, partial(print, flush=True))
        keep_room(self.paths, len(self.hosts))
        attempt = Attempt(
            generation=generation,
            job=self.environment["SLURM_JOB_ID"],
            requeues=self.restart,
            nodes=self.nodes,
            begin_s=time.time(),
            checkpoint=checkpoints.newest(self.paths.checkpoints),
        )
        note_attempt(self.paths, attempt)
        outcome = rank_records.outcome(self.paths, self.hosts, generation, self._run_step(generation))
        if not self.is_held():
            return outcome
        ours = outcome.state in ("done", "stopped", "interrupted")
        if signal.SIGTERM in self.told or (not ours and commands.is_preempted(self.environment)):
            outcome = rank_records.by_slurm(outcome, self.nodes)
        note_attempt(
            self.paths,
            replace(attempt, end_s=time.time(), state=outcome.state, cause=outcome.cause, rank=outcome.rank),
        )
        return outcome

    def _run_step(self, generation: int) -> int:
        environment, command = dict(self.environment), list(self.command)
        if self.elastic:
            command[1:1] = [f"--nodes={len(set(self.hosts))}", f"--ntasks={len(self.hosts)}"]
        if "--distribution=arbitrary" in command:
            self.paths.hosts.write_text("".join(f"{host}\n" for host in self.hosts))
            environment["SLURM_HOSTFILE"] = str(self.paths.hosts)
        # Ranks do not outlive who watches them.
        with_us = partial(die_with_parent, os.getpid(), signal.SIGTERM)
        step = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=with_us)
        before = bool(self.told)
        asked = lambda: before or signal.SIGUSR1 in self.told  # noqa: E731
        wanted = partial(commands.is_preempted, self.environment)
        again = partial(commands.tell_steps, self.environment)
        watch = StepWatch(self.paths, generation, len(self.hosts), asked, wanted=wanted, again=again)
        code = watch.wait(step, signal.SIGUSR1)
        self.abandoned = watch.gone
        return code

    def _may_go_on(self) -> bool:
        cancelled = signal.SIGTERM in self.told or self.paths.cancelled.exists()
        return not cancelled and 0 < self.requeues >= self._starts_in_vain()

    def _lost_nodes(self, outcome: Outcome) -> bool:
        """Returns whether srun starts no rank on nodes where this start of the job has had ranks before."""
        ours = [x for x in attempts(self.paths) if self._is_ours(x) and x.requeues == self.restart]
        return len(ours) > 1 and outcome.rank is None and outcome.state == "failed"

    def _requeue(self, outcome: Outcome) -> int:
        print(f"{outcome.cause}; queueing the job again", flush=True)
        if not commands.requeue(commands.job_name(self.environment)):
            return outcome.status if self._lost_nodes(outcome) else self._end(outcome)  # SLURM decides
        end_s = time.monotonic() + REQUEUED_S  # long before, SLURM asks this process to end
        while signal.SIGTERM not in self.told and time.monotonic() < end_s:
            time.sleep(LISTEN_S)
        return STOPPED

    def _end(self, outcome: Outcome) -> int:
        if outcome.state == "done" or signal.SIGTERM not in self.told or self.paths.cancelled.exists():
            tell(self.paths, outcome)
            self.paths.clear_marks(runfolder.read(self.paths).generation)
            _gather(self.paths, len(self.hosts), outcome)
        # Else SLURM ends the job, and knows why, and whether it begins anew.
        if outcome.state != "done":
            print(f"{outcome.state}: {outcome.cause}", flush=True)
        return outcome.status


def _gather(paths: Paths, ranks: int, outcome: Outcome) -> None:
    """Writes the trace and the losses of all ranks. Without them the run has still ended as it has."""
    try:
        runfolder.result_of(paths, ranks, outcome)
    except (ShardwrightError, OSError) as error:
        print(f"the traces were not gathered: {error}", flush=True)


def _be_known(paths: Paths, name: str) -> bool:
    """Writes this job down as the job of the run, for those who look at it.

    Returns: whether it was not before; a job submitted by hand is unknown to the launch.
    """
    job, known = int(name.partition("_")[0]), Queued.read(paths)
    if known is not None and known.job == job:
        return False
    Queued(job=job, submitted_s=time.time()).write(paths)
    return True


def main(arguments: Sequence[str]) -> int:
    """Supervises a job, if no other job trains in the run folder.

    Args: `arguments` are the words of the command line.
    Returns: the exit status of the job.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requeues", type=int, required=True)
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    paths = Paths(given.folder)
    try:
        name = commands.job_name(os.environ)
        with job_folder.taken(paths, name) as is_held:
            if _be_known(paths, name):
                for old in (paths.cancelled, paths.outcome):
                    old.unlink(missing_ok=True)
            return _supervise(paths, given, is_held)
    except job_folder.FolderBusy as error:  # nothing is said of the run, which is another's
        _be_known(paths, error.job)
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.status
    except OSError as error:
        return _failed(paths, error)


def _supervise(paths: Paths, given: argparse.Namespace, is_held: Callable[[], bool]) -> int:
    try:
        plan = plans.load(paths.plan)
        if shutil.which(given.command[0]) is None:
            raise ShardwrightError(f"no {given.command[0]} on this node")
        asked = (given.command, given.requeues, given.restarts, given.elastic)
        supervisor = Supervisor(paths, plan, *asked, dict(os.environ), is_held)
        supervisor.listen()
        return supervisor.run()
    except (ShardwrightError, OSError) as error:
        return _failed(paths, error)


def _failed(paths: Paths, error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    tell(paths, Outcome("failed", cause=str(error)))
    return error.status if isinstance(error, ShardwrightError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
