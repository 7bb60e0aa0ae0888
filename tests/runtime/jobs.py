"""What pool workers run: one rank of a plan, with everything it knows written down for the test to compare."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from planner.plan import yaml as plan_yaml
from runtime import checkpoint as checkpoints
from runtime.rank import sleeping
from runtime.runfolder import Losses, Paths
from runtime.runfolder import job as jobs
from runtime.train import Model, NoPulse, train_rank
from runtime.train import script as runs
from runtime.train.training import Training
from runtime.update import OwnPart
from runtime.world import world as groups
from tests.captures import captured_of


def model_of(paths: Paths) -> Model:
    plan = plan_yaml.load(paths.plan)
    return Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))


def train(
    rank: int,
    ranks: int,
    rendezvous: Path,
    *,
    folder: str,
    steps: int,
    fault: str = "",
    every: bool = True,
) -> dict[int, Losses]:
    """Losses by step; gradients of step 1 and parameters after every step lie in the folder, or only those after the
    last: whoever looks at a step ends its overlap with the next."""
    from tests.runtime import faults

    paths = Paths(Path(folder))
    model, job = model_of(paths), jobs.read(paths)
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        start = checkpoints.latest(paths.checkpoints)
        assert start is not None
        with faults.injected(fault, rank):
            training = Training(model, start, world, job, paths, NoPulse())
            data = training.batches()
            losses = {}
            for step in range(1, steps + 1):
                losses[training.done + 1] = training.step(next(data))
                if every or step == steps:
                    record(training, paths.root, rank, step)
            training.finish()
        world.barrier()
    finally:
        world.close()
    return losses


def whole_run(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> None:
    """All that a rank of a launched run does, from the run folder."""
    paths = Paths(Path(folder))
    train_rank(paths, jobs.read(paths), model_of(paths), rank)


def script(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> None:
    """A user's script on one rank; what a launcher leaves behind in a process is taken back."""
    paths = Paths(Path(folder))
    before = sys.argv, list(sys.path)
    try:
        runs.run_script(paths, jobs.read(paths), model_of(paths), rank)
    finally:
        sys.argv, sys.path[:] = before
        runs._launched.clear()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def sleep(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> None:
    paths = Paths(Path(folder))
    job, plan = jobs.read(paths), plan_yaml.load(paths.plan)
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    made = sleeping(plan, world, NoPulse())
    for step in range(1, job.steps + 1):
        made.step(step)
    made.transport.drain()
    made.tracer.timeline().save(paths.rank_trace(rank))
    world.barrier()
    world.close()


def _of(piece: OwnPart, shared: bool) -> str:
    """The name of a parameter, and of which elements of it where a rank has some."""
    span = f"[{piece.start}:{piece.stop}]"
    return f"{piece.name}{span}" if shared else piece.name


def record(training: Training, root: Path, rank: int, step: int) -> None:
    held = training.rank
    held.updater.settle()
    whole = held.parts.whole if held.parts is not None else lambda _, x: x
    if step == 1:
        grads = {
            _of(piece, flat.bucket.by_element): whole(piece.name, piece.tensor.grad).clone()
            for flat in held.flats
            for piece in flat.pieces()
            if not (flat.bucket.by_element and held.parts and piece.name in held.parts.cut)
        }
        save_file(grads, root / f"grads-{rank}.safetensors")
    with held.units.whole():
        every = {**held.parameters, **held.buffers}
        tensors = {n: whole(n, tensor).detach().clone() for n, tensor in every.items()}
    save_file(tensors, root / f"after-{step}-{rank}.safetensors")
