"""What pool workers run for the tests of sharing: a step whose bytes are counted, and checkpoints written and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.checkpoint import Facts, latest
from runtime.runfolder import Paths
from runtime.runfolder import job as jobs
from runtime.train import NoPulse
from runtime.train.training import Training
from runtime.world import world as groups
from tests.runtime.jobs import model_of


def _training(folder: str, rank: int, ranks: int, rendezvous: Path) -> Training:
    paths = Paths(Path(folder))
    start = latest(paths.checkpoints)
    assert start is not None
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    return Training(model_of(paths), start, world, jobs.read(paths), paths, NoPulse())


def sent(rank: int, ranks: int, rendezvous: Path, *, folder: str) -> int:
    """The bytes of one step that this rank sends, as the collectives are told them."""
    training, found = _training(folder, rank, ranks, rendezvous), [0]
    of = {
        name: getattr(dist, name) for name in ("all_to_all_single", "all_gather", "broadcast", "all_reduce")
    }

    def scattered(
        out: Tensor, given: Tensor, sizes: list[int], given_sizes: list[int], **more: Any
    ) -> object:
        here = dist.get_rank(more["group"])
        found[0] += (
            sum(size for place, size in enumerate(given_sizes) if place != here) * given.element_size()
        )
        return of["all_to_all_single"](out, given, sizes, given_sizes, **more)

    def gathered(parts: list[Tensor], own: Tensor, **more: Any) -> object:
        found[0] += own.nbytes * (len(parts) - 1)
        return of["all_gather"](parts, own, **more)

    def handed(tensor: Tensor, source: int, **more: Any) -> object:
        found[0] += tensor.nbytes * (dist.get_world_size(more["group"]) - 1) if source == rank else 0
        return of["broadcast"](tensor, source, **more)

    def summed(*given: Any, **more: Any) -> object:
        raise AssertionError("a sum of whole gradients")

    data = training.batches()
    batch = next(data)
    try:
        with (
            patch.object(dist, "all_to_all_single", scattered),
            patch.object(dist, "all_gather", gathered),
            patch.object(dist, "broadcast", handed),
            patch.object(dist, "all_reduce", summed),
        ):
            training.step(batch)
            training.rank.updater.settle()
        training.world.barrier()
    finally:
        training.world.close()
    return found[0]


def saved(rank: int, ranks: int, rendezvous: Path, *, folder: str, steps: int) -> None:
    """Trains some steps and writes a checkpoint."""
    training = _training(folder, rank, ranks, rendezvous)
    data = training.batches()
    for _ in range(steps):
        training.step(next(data))
    training.save()
    training.finish()
    training.world.barrier()
    training.world.close()


def copied(rank: int, ranks: int, rendezvous: Path, *, folder: str, step: int) -> None:
    """Reads the last checkpoint and writes what this plan holds of it as another one."""
    training = _training(folder, rank, ranks, rendezvous)
    facts = Facts(step=step, sample=0, seed=0, fingerprint=training.graph.fingerprint)
    training._writer.save(training.rank.part(), facts)
    training._writer.wait()
    training.world.barrier()
    training.world.close()
