"""Trains a plan in this one process."""

from __future__ import annotations

from pathlib import Path

import torch

from planner.plan import Axes, Batch, Memory, Place, Plan, ScheduleChoice, StagePlan, StageTimes
from planner.schedule import generate
from planner.workload import Workload
from runtime import checkpoint as checkpoints
from runtime import runfolder
from runtime.runfolder import Outcome, Result, result_of, tell
from runtime.train.prepare import Model, Refuse, job_of, prepare
from runtime.train.training import NoPulse, Training
from runtime.world import alone


def train_inline(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    refuse: Refuse,
    **settings: object,
) -> Result:
    """Trains a plan in this process: all layers in one stage, the micro-batches of all replicas one after
    another.

    Args: `settings` are fields of Job; `refuse` raises BadInput where somebody else uses the folder.
    Returns: losses and Timeline of the finished run.
    Raises: whatever the training raises, after it was written down as the outcome.
    """
    training = open_inline(plan, folder, steps=steps, workload=workload, refuse=refuse, **settings)
    paths, before = training.paths, torch.get_num_threads()
    torch.set_num_threads(training.job.threads)
    try:
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
        runfolder.release(paths)
    tell(paths, done := Outcome("done"))
    return result_of(paths, 1, done)


def open_inline(
    plan: Plan,
    folder: Path | str,
    *,
    steps: int,
    workload: Workload | None = None,
    refuse: Refuse,
    **settings: object,
) -> Training:
    """Prepares a run folder and opens its training in this process, ready for the first step.

    Args: `settings` are fields of Job; `refuse` raises BadInput where somebody else uses the folder.
    Returns: a training that goes on from the last complete checkpoint of the folder.
    """
    model = Model.of(one_process(plan), workload)
    paths, job = prepare(model, Path(folder), job_of(plan, steps, settings), refuse)
    begin = checkpoints.latest(paths.checkpoints)
    assert begin is not None
    return Training(model, begin, alone(torch.device(job.device)), job, paths, NoPulse())


def one_process(plan: Plan) -> Plan:
    """Returns the same training without its parallelism.

    Returns: a plan with one stage on one rank, and with the samples and micro-batches of `plan`.
    """
    micros = plan.batch.whole
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
    memory = Memory(
        **{name: sum(getattr(row, name) for row in plan.prediction.memory) for name in Memory.model_fields}
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
            "replica_times": (),
            "hops": (),
            "prediction": plan.prediction.model_copy(update={"memory": (memory,)}),
            "shard_optimizer": False,
        }
    )
