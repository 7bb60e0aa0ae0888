"""Runs on this machine: every rank of a plan as a process, or the whole of it in this one.

    run = launch(plan, folder, steps=10)        # returns at once; ranks are processes of their own
    result = run.wait()                         # losses, the measured Timeline, how it ended
    result = launch_inline(plan, folder, steps=10)

A run folder that already holds checkpoints is resumed from the last complete one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from planner import plan_yaml
from planner.capture import Captured
from planner.errors import BadInput, ShardwrightError
from planner.plan import Axes, Batch, Place, Plan, ScheduleChoice, StagePlan, StageTimes
from planner.schedule.families import generate
from planner.timeline import Timeline
from planner.workload import Workload
from runtime import at_use, holder, pretrained, soundness, status, trace
from runtime import checkpoint as checkpoints
from runtime import job as jobs
from runtime.assembly import check_supported
from runtime.checkpoint import Checkpoint, Facts
from runtime.groups import alone
from runtime.handle import Handle
from runtime.job import Job, check
from runtime.metrics import losses_of
from runtime.optimizer import check_optimizer
from runtime.paths import Paths
from runtime.slurm import turn
from runtime.supervise import Outcome, tell
from runtime.train import Model, NoPulse, Training
from runtime.words import keep_room

START_DEADLINE_S = 60.0
COMPILE_DEADLINE_S = 600.0  # the first forward of a stage compiles it
FIRST_WORD_S, RARELY_S = 2.0, 60.0  # of how a run stands, while somebody waits for it
WORD_S = 5.0  # for a supervisor that is told to end
STEPS_A_DEADLINE = 50  # a rank that makes no progress for the time of so many simulated steps hangs


class RunFailed(ShardwrightError):
    """A rank raised, was killed or hung; names the first cause."""


@dataclass(frozen=True, kw_only=True)
class Result:
    state: str  # done | failed | hung | interrupted | ended
    losses: dict[int, float]  # by step, from 1
    timeline: Timeline
    folder: Path
    cause: str = ""
    rank: int | None = None  # the first that was not well
    status: int = 0  # of a launch that waits

    def check(self) -> Result:
        if self.state != "done":
            raise RunFailed(self.cause)
        return self


@dataclass(frozen=True, repr=False)
class LocalRun(Handle):
    """A run in processes of its own."""

    process: subprocess.Popen[bytes]

    def outcome(
        self, timeout_s: float | None = None, tell: Callable[[status.Status], None] | None = None
    ) -> Outcome:
        """With `tell`, how it stands now and then, ever more rarely."""
        end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        pause_s = float("inf") if tell is None else FIRST_WORD_S
        while not self._ended(min(pause_s, end_s - time.monotonic())):
            if time.monotonic() >= end_s:
                raise TimeoutError(f"{self.folder} has not ended after {timeout_s:g} s")
            assert tell is not None
            tell(status.of(self.folder))
            pause_s = min(1.5 * pause_s, RARELY_S)
        if self.paths.cancelled.exists():
            return Outcome("cancelled")
        if (found := status.outcome_of(self.paths)) is not None:
            return found
        return Outcome("failed", cause=f"the supervisor ended with status {self.process.returncode}")

    def _ended(self, within_s: float) -> bool:
        try:
            self.process.wait(None if within_s == float("inf") else max(within_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self) -> None:
        """As Ctrl-C ends it: with a word, for whoever asks later."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(WORD_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if status.outcome_of(self.paths) is None:
            tell(self.paths, Outcome("interrupted", cause="by Ctrl-C"))

    def cancel(self) -> None:
        if self.process.poll() is None:
            super().cancel()
            self.process.wait()


def launch(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    detach: bool = False,
    **settings: object,
) -> LocalRun:
    """`settings` are fields of Job. Its checks are made, and checkpoint 0 is written, before anything starts.

    The run ends with the process that launches it, unless it is detached.
    """
    job = job_of(plan, steps, settings)
    if job.content == "sleep":
        paths, _ = prepare_folder(plan, Path(folder), job)
    else:
        paths, _ = prepare(Model.of(plan, workload), Path(folder), job)
    return start(paths, len(plan.places), detach)


def start(paths: Paths, ranks: int, detach: bool = False) -> LocalRun:
    parent = 0 if detach else os.getpid()
    command = [sys.executable, "-P", "-m", "runtime.local_main", str(paths.root), str(parent)]
    with (paths.root / "logs" / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    holder.note(paths, process.pid)
    return LocalRun(paths, ranks, process)


def launch_inline(
    plan: Plan, folder: Path | str, *, steps: int, workload: Workload | None = None, **settings: object
) -> Result:
    """The same training in one process: one stage, the micro-batches of all replicas one after another."""
    model = Model.of(one_process(plan), workload)
    paths, job = prepare(model, Path(folder), job_of(plan, steps, settings))
    begin = checkpoints.latest(paths.checkpoints)
    assert begin is not None
    before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        holder.note(paths, os.getpid())
        training = Training(model, begin, alone(torch.device(job.device)), job, paths, NoPulse())
        training.run()
        training.leave()
    except KeyboardInterrupt:
        tell(paths, Outcome("interrupted", cause="by Ctrl-C"))
        raise
    except BaseException as error:
        tell(paths, Outcome("failed", 0, f"{type(error).__name__}: {error}"))
        raise
    finally:
        torch.set_num_threads(before)
    tell(paths, done := Outcome("done"))
    return result_of(paths, 1, done)


def job_of(plan: Plan, steps: int, settings: dict[str, object]) -> Job:
    known = set(Job.__dataclass_fields__) - {"steps"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise BadInput(f"no setting '{unknown[0]}'", where="launch", allowed=", ".join(sorted(known)))
    first = COMPILE_DEADLINE_S if plan.execution == "compiled" else START_DEADLINE_S
    deadline = max(first, STEPS_A_DEADLINE * plan.prediction.step_ns * 1e-9)
    return check(replace(Job(steps=steps, deadline_s=deadline), **settings))  # type: ignore[arg-type]


def prepare(model: Model, folder: Path, job: Job) -> tuple[Paths, Job]:
    """The run folder with all that ranks read; on return nothing more can be wrong with the plan."""
    check_supported(model.plan, model.captured)
    at_use.check(model.plan, model.captured.graph, job.clip_norm, job.clip_by)
    check_optimizer(model.workload, model.captured.graph)
    _refuse_running(Paths(folder.resolve()))
    with _new_or_as_it_was(folder.resolve()) as paths:
        checkpoints.remove_partial(paths.checkpoints)
        if checkpoints.complete(paths.checkpoints):
            soundness.last_sound(paths.checkpoints, lambda what: print(what, file=sys.stderr))
        begin = checkpoints.latest(paths.checkpoints)
        if begin is None:
            write_start(paths, model, job)
        else:
            _check_resumed(begin, model.captured, job)
        return prepare_folder(model.plan, folder, job)


@contextmanager
def _new_or_as_it_was(folder: Path) -> Iterator[Paths]:
    """A folder that is made for a run which then cannot begin is taken away again."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield Paths(folder).make()
    except BaseException:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # of folders above it those that nobody else has used meanwhile
            for path in new[1:]:
                path.rmdir()
        raise


def prepare_folder(plan: Plan, folder: Path, job: Job) -> tuple[Paths, Job]:
    paths = Paths(folder.resolve()).make()
    paths.plan.write_text(plan_yaml.dump(plan))
    _refuse_running(paths)
    keep_room(paths, len(plan.places))
    job = replace(job, generation=_next_generation(paths))
    job.write(paths)
    for old in (paths.outcome, paths.cancelled, paths.holder, *paths.causes()):
        old.unlink(missing_ok=True)
    return paths, job


def _refuse_running(paths: Paths) -> None:
    """Two runs in one folder would write over each other."""
    turn.refuse(paths)
    held = holder.find(paths)
    if held is not None and held.alive and held.pid != os.getpid():
        raise BadInput(
            "a run in this folder is running", where=str(paths.root), allowed="cancel it, or another folder"
        )


def write_start(paths: Paths, model: Model, job: Job) -> Checkpoint:
    """Checkpoint 0 from build(), under the run's seed, and from the weights that the run is to begin with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        tensors = model.captured.initial(model.workload.build())
    if job.weights:
        tensors |= pretrained.read(Path(job.weights), model.captured)
    facts = Facts(step=0, sample=0, seed=job.seed, fingerprint=model.captured.graph.fingerprint)
    return checkpoints.write_initial(paths.checkpoints, tensors, facts, model.captured.saved)


def _check_resumed(begin: Checkpoint, captured: Captured, job: Job) -> None:
    if begin.facts.fingerprint != captured.graph.fingerprint:
        raise BadInput("the checkpoint is of another model", where=str(begin.folder))
    if begin.facts.seed != job.seed:
        raise BadInput(
            f"seed {job.seed}", where=str(begin.folder), allowed=f"{begin.facts.seed}, as it began"
        )


def _next_generation(paths: Paths) -> int:
    """Ranks take the file at which they met away with them, mostly, so it does not tell of all that were before."""
    met = (int(path.name.rpartition("-")[2]) for path in paths.root.glob("rendezvous-*"))
    told = [jobs.read(paths).generation] if paths.job.exists() else []
    return 1 + max((*met, *told), default=-1)


def one_process(plan: Plan) -> Plan:
    """The plan's training without its parallelism: the same samples, the same micro-batches, one after another."""
    micros = plan.batch.micros * plan.axes.data
    schedule = generate("1f1b", workers=1, micros=micros)
    choice = ScheduleChoice(
        family="1f1b",
        pairs=1,
        chunks=1,
        place=schedule.place,
        pipe_of=schedule.pipe_of,
        orders=tuple(schedule.to_text().splitlines()),
        settings=dict(schedule.settings),
    )
    total = StageTimes(
        **{name: sum(getattr(t, name) for t in plan.times) for name in StageTimes.model_fields}
    )
    layers = tuple(name for stage in plan.stages for name in stage.layers)
    return plan.model_copy(
        update={
            "axes": Axes(order=plan.axes.order),
            "batch": Batch(samples=plan.batch.samples, micro=plan.batch.micro, micros=micros),
            "schedule": choice,
            "stages": (
                StagePlan(layers=layers, recompute_before="", spatial=(), gather_before="", regrid=()),
            ),
            "places": (Place(rank=0, node=0, slot=0, data=0, pipeline=0, spatial=0),),
            "times": (total,),
            "hops": (),
            "shard_optimizer": False,
        }
    )


def result_of(paths: Paths, ranks: int, outcome: Outcome) -> Result:
    traces = [path for rank in range(ranks) if (path := paths.rank_trace(rank)).exists()]
    timeline = trace.gather(traces) if traces else Timeline()
    if traces:
        timeline.save(paths.trace)
    losses = losses_of(paths)
    lines = [json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()]
    paths.metrics.write_text("".join(lines))
    return Result(
        state=outcome.state,
        losses=losses,
        timeline=timeline,
        folder=paths.root,
        cause=outcome.cause,
        rank=outcome.rank,
        status=outcome.status,
    )
