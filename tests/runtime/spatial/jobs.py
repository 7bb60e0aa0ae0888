"""What pool workers run: cases on real processes over gloo, each rank comparing its own part."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from runtime import checkpoint as checkpoints
from runtime.runfolder import Losses, Paths
from runtime.runfolder import job as runs
from runtime.spatial import GroupWire
from runtime.train import NoPulse
from runtime.train.training import Training
from runtime.world import World
from runtime.world import world as groups
from tests.runtime.jobs import model_of
from tests.runtime.spatial.cases import CASES
from tests.runtime.spatial.equality import Made, on_shards, own_differences
from tests.runtime.spatial.variants import Variant


def operations(
    rank: int, ranks: int, rendezvous: Path, *, chosen: Sequence[tuple[str, str, tuple[int, ...]]]
) -> dict[str, float]:
    """Worst difference of every variant."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    try:
        wire = GroupWire(dist.group.WORLD)  # type: ignore[arg-type]
        return dict(_differences(Variant(CASES[name], parts, grid), wire) for name, parts, grid in chosen)
    finally:
        dist.destroy_process_group()


def losses(rank: int, ranks: int, rendezvous: Path, *, folder: str, steps: int) -> list[Losses]:
    """Of a prepared run, a step at a time; nothing is written."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    try:
        return _trained(Paths(Path(folder)), world, steps)
    finally:
        world.close()
        gc.collect()  # a training is held by itself, and a worker would hold that of the case before as well


def _trained(paths: Paths, world: World, steps: int) -> list[Losses]:
    start = checkpoints.latest(paths.checkpoints)
    assert start is not None
    training = Training(model_of(paths), start, world, runs.read(paths), paths, NoPulse())
    batches = training.batches()
    return [training.step(next(batches)) for _ in range(steps)]


def _differences(variant: Variant, wire: GroupWire) -> tuple[str, float]:
    ref = variant.reference()
    how = variant.analysed(ref)
    made = on_shards(ref, variant.grid, how, wire)
    summed = dict(made.parameter_gradients)
    for name in sorted(how.partial & set(summed)):
        dist.all_reduce(summed[name])
    made = Made(made.outputs, made.input_gradients, summed, made.buffers)
    return str(variant), max(own_differences(ref, how, made, variant.grid, wire.rank).values())
