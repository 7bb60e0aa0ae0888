"""Mistakes of a runtime, made on purpose: a test of equality that passes with one of these in place is no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from planner.kept import Masks
from planner.schedule import Message
from runtime.messages import Transport
from runtime.rank import sync_batchnorm as synchronised
from runtime.train.training import Batch, Training
from runtime.update import GradientSync

COUNTED = "count in "  # no mistake: writes down what is summed, into a folder


@contextmanager
def injected(fault: str, rank: int) -> Iterator[None]:
    if not fault:
        yield
    elif fault == "dropped sum":
        with _without_sums():
            yield
    elif fault == "swapped micro-batch":
        with _swapped():
            yield
    elif fault == "own statistics":
        with patch.object(synchronised, "synchronise", lambda modules, mesh: None):
            yield
    elif fault.startswith(COUNTED):
        with _counted(Path(fault.removeprefix(COUNTED)) / f"summed-{rank}"):
            yield
    elif fault == "other masks":
        with patch.object(Masks, "digest", f"of rank {rank}"):
            yield
    else:
        assert fault == "lost skip gradient"
        with _lost():
            yield


@contextmanager
def _without_sums() -> Iterator[None]:
    begin = GradientSync.begin

    def forgetful(self: GradientSync) -> None:
        self._groups = {}
        begin(self)

    with patch.object(GradientSync, "begin", forgetful):
        yield


@contextmanager
def _counted(file: Path) -> Iterator[None]:
    add = dist.all_reduce

    def counting(tensor: Tensor, *args: object, **kwargs: object) -> object:
        with file.open("a") as lines:
            lines.write(f"{tensor.nbytes if tensor.is_floating_point() else 0}\n")
        return add(tensor, *args, **kwargs)  # type: ignore[arg-type]

    with patch.object(dist, "all_reduce", counting):
        yield


@contextmanager
def _swapped() -> Iterator[None]:
    step = Training.step

    def confused(self: Training, batch: Batch) -> object:
        """The first two micro-batches of the inputs change places, those of the targets do not."""
        if 0 in batch and 1 in batch:
            first, second = ({k: v for k, v in batch[m].items() if k.startswith("input")} for m in (0, 1))
            batch = {**batch, 0: {**batch[0], **second}, 1: {**batch[1], **first}}
        return step(self, batch)

    with patch.object(Training, "step", confused):
        yield


@contextmanager
def _lost() -> Iterator[None]:
    wait = Transport.wait

    def deaf(self: Transport, message: Message) -> dict[str, Tensor]:
        found = wait(self, message)
        far = message.direction == "grad" and len(found) > 1
        return {n: torch.zeros_like(t) if far and i == 0 else t for i, (n, t) in enumerate(found.items())}

    with patch.object(Transport, "wait", deaf):
        yield
