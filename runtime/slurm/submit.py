"""Checks a run, prepares its folder with the batch script, and submits it as a job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner import verify
from planner.errors import BadInput, Infeasible, ShardwrightError
from planner.files import absolute
from planner.model import ModelGraph
from planner.plan import Plan
from planner.units import format_duration
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.runfolder import Job, Outcome, Paths, tell, write_whole
from runtime.slurm import commands, job_folder, limits, state, task_layout
from runtime.slurm import script as scripts
from runtime.slurm.job_folder import Elastic
from runtime.slurm.options import Options
from runtime.slurm.state import Queued

if TYPE_CHECKING:
    from runtime.train import Model

LOOK_S = 0.2  # at a job that was told to stop
STATES = 3  # parameters, and two tensors of optimizer state beside each
LOCAL_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")


def request(
    plan: Plan, name: str, folder: Path, job: Job, flexible: Elastic | None = None
) -> scripts.JobRequest:
    """Returns the facts that a batch script is made from.

    Args: `name` is that of the plan; `flexible` allows fewer or more nodes than the plan has.
    """
    return scripts.JobRequest(
        name=name,
        folder=absolute(folder),
        directory=Path.cwd(),
        layout=task_layout.of(plan),
        threads=cores_of(job),
        cuda=job.device == "cuda",
        python=sys.executable,
        nodes=(flexible.fewest, flexible.most) if flexible else None,
    )


def cores_of(job: Job) -> int:
    """Returns the cores that a rank asks SLURM for: one for each thread, and one for each reader that is named."""
    return job.threads + (job.data_workers or 0)


def check(plan: Plan, graph: ModelGraph | None, folder: Path, job: Job, options: Options) -> list[str]:
    """Checks everything that can be known to fail before a job is queued.

    Args: without `graph`, the disk is not checked.
    Returns: warnings about what may fail.
    Raises: BadPlan, BadInput or Infeasible for what will fail.
    """
    verify.check(plan, graph=graph)
    wanted = task_layout.of(plan)
    if graph is not None:
        _check_disk(graph, folder, job)
    known = limits.effective(options, os.environ)
    limits.check(limits.known(), wanted, cores_of(job), job.device == "cuda", known)
    place, warnings = str(absolute(folder)), _check_time(plan, graph, folder, options)
    if len(wanted.tasks) > 1 and place.startswith(tuple(f"{name}/" for name in LOCAL_FOLDERS)):
        warnings.append(
            f"{place} is mostly a node's own: a run on several nodes needs a folder that they share"
        )
    return warnings


def container_warnings(request: scripts.JobRequest, options: Options) -> list[str]:
    """Returns a warning where ranks in a container would start a Python that only this machine is known to have.

    Args: `options` without a container, or with a `python` of their own, need none.
    """
    if options.container is None or options.python is not None:
        return []
    inside = [mount.split(":")[:2][-1] for mount in options.container.mounts]
    if any(Path(request.python).is_relative_to(folder) for folder in inside):
        return []
    return [
        f"ranks start {request.python} in the container, and no mount has it; write `python: python3` into the site "
        "file for the image's own, which needs torch and shardwright, or add the folder to `mounts`"
    ]


def _check_time(plan: Plan, graph: ModelGraph | None, folder: Path, options: Options) -> list[str]:
    """Holds a time limit against what one step and one checkpoint take here.

    Returns: a warning where the time between the signal and the limit is too short for them.
    Raises: Infeasible where the limit itself is.
    """
    time_limit = limits.effective(options, os.environ).time
    if time_limit is None or graph is None:
        return []
    size = STATES * sum(parameter.bytes for parameter in graph.parameters)
    needed_s = plan.prediction.step_ns * 1e-9 + checkpoints.write_s(_there(folder), size)
    limit_s, signal_s = 60 * limits.minutes(str(time_limit)), scripts.signal_s(options, time_limit)
    takes = f"a step and a checkpoint take about {format_duration(needed_s * 1e9)}"
    if needed_s > limit_s:
        raise Infeasible(f"a time limit of {time_limit} ends before the first checkpoint: {takes}")
    if needed_s > signal_s:
        return [
            f"a job of {time_limit} is told to stop {signal_s} s before its limit, and {takes}: steps since the last "
            "checkpoint may be lost; a longer --time, or signal_s of the site file, makes room"
        ]
    return []


def _there(folder: Path) -> Path:
    """Returns the run folder, or the nearest folder above it that exists."""
    return next(path for path in (absolute(folder), *absolute(folder).parents) if path.exists())


def _check_disk(graph: ModelGraph, folder: Path, job: Job) -> None:
    """Raises Infeasible where the disk has no room for the checkpoints that are kept and the one in writing."""
    one = STATES * sum(parameter.bytes for parameter in graph.parameters)
    there = _there(folder)
    free, needed = shutil.disk_usage(there).free, (job.keep + 1) * one
    if needed > free:
        raise Infeasible(f"{job.keep + 1} checkpoints need {needed} bytes; {there} has {free} free")


def submit(paths: Paths, environment: Mapping[str, str] = os.environ) -> Queued:
    """Queues the script of a run folder. Inside of an allocation, it starts the script at once instead.

    Args: `environment` says whether this process is inside of an allocation.
    Returns: the job, which is also written in the run folder.
    Raises: SlurmError where SLURM refuses the script; the reason is then the outcome of the run.
    """
    paths.cancelled.unlink(missing_ok=True)
    if "SLURM_JOB_ID" in environment and environment.get("SLURM_PROCID") is None:
        queued = _start_inside(paths, environment)
    else:
        try:
            queued = Queued(job=int(commands.submit(paths.script)), submitted_s=time.time())
        except ShardwrightError as error:  # the folder says why there is no job
            tell(paths, Outcome("failed", cause=str(error)))
            runfolder.release(paths)
            raise
    queued.write(paths)
    if queued.inside:
        runfolder.note_process(paths, queued.inside)
    else:
        runfolder.release(paths)  # the queue has the run from now on
    return queued


def _start_inside(paths: Paths, environment: Mapping[str, str]) -> Queued:
    job = int(environment["SLURM_JOB_ID"])
    with paths.slurm_log(job).open("ab") as log:
        process = subprocess.Popen(
            ["bash", str(paths.script)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Queued(job=job, submitted_s=time.time(), inside=process.pid)


def cancel(paths: Paths) -> None:
    """Ends the job of a run. Ranks may leave a checkpoint in the time that SLURM gives them.

    Args: `paths` is the run folder; nothing starts in it again.
    Raises: BadInput where no job of the run waits or runs.
    """
    queued = Queued.read(paths)
    if queued is None:
        raise BadInput("was never queued", where=str(paths.root))
    if queued.inside:
        runfolder.cancel(paths, signal.SIGTERM)
    else:
        if state.of(queued.job).state not in ("queued", "running"):
            raise BadInput("does not run", where=str(paths.root))
        _check_script(paths, queued.job)
        paths.cancelled.touch()
        commands.ask("scancel", str(queued.job))


def _check_script(paths: Paths, job: int) -> None:
    script = commands.script_of(job)
    if not (script and script.exists() and script.parent.samefile(paths.root)):
        raise BadInput(
            f"the script of job {job}, {script or 'which SLURM does not name'}, does not lie there",
            where=str(paths.root),
            allowed=f"scancel {job}, if you mean that job",
        )


def stop(paths: Paths) -> None:
    """Stops the job of a run after the step that it is in, with a checkpoint, and waits until SLURM is done with it.

    Args: `paths` is the run folder; SLURM does not queue the job again.
    Raises: BadInput where no job of the run waits or runs, or where somebody cancels it meanwhile.
    """
    queued = Queued.read(paths)
    if queued is None or queued.inside or state.of(queued.job).state not in ("queued", "running"):
        raise BadInput("has no job that waits or runs", where=str(paths.root))
    _check_script(paths, queued.job)
    paths.cancelled.touch()
    told = ""  # a job that waits may begin meanwhile, and one that runs may lose its nodes and wait again
    while (now := state.of(queued.job).state) in ("queued", "running"):
        if now != told:
            queued = replace(queued, left="withdrawn" if now == "queued" else "stopped")
            queued.write(paths)
            how = "--state=PENDING" if now == "queued" else "--signal=USR1"
            commands.ask("scancel", how, *([] if now == "queued" else ["--batch"]), str(queued.job))
            told = now
        time.sleep(LOOK_S)
    if state.somebody_cancelled(paths):
        raise BadInput(f"somebody cancelled job {queued.job}", where=str(paths.root))


def prepared(
    plan: Plan,
    name: str,
    folder: Path,
    job: Job,
    options: Options,
    *,
    workload: Workload | None = None,
    model: Model | None = None,
    flexible: Elastic | None = None,
) -> tuple[Paths, list[str]]:
    """Prepares the run folder with all that a job needs, after all checks are made.

    Args: `flexible` allows fewer or more nodes than the plan has; `workload` is loaded by its name, and `model`
      captured from it, where they are not given.
    Returns: the files of the run, and warnings about what may fail.
    Raises: BadPlan, BadInput or Infeasible for what will fail.
    """
    from runtime.train import Model, prepare

    asked = request(plan, name, folder, job, flexible)
    text = scripts.text(asked, options)
    job_folder.refuse(Paths(absolute(folder)))
    model = model or Model.of(plan, workload)
    warnings = check(plan, model.captured.graph, folder, job, options) + container_warnings(asked, options)
    if flexible is not None:
        flexible.check(plan)
    paths, _ = prepare(model, folder, job, job_folder.refuse, warnings.append)
    if flexible is not None:
        flexible.write(paths)
    write_whole(paths.script, text)
    return paths, warnings


def queue_script(path: Path) -> str:
    """Submits a batch script that belongs to no run folder.

    Args: `path` is where the script lies, which stays there.
    Returns: the number of the job.
    Raises: SlurmError with SLURM's reason where the script is refused.
    """
    return commands.submit(path)
