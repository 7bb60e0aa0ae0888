"""A small perceptron over samples that take their time, so that something can happen to it on the way.

After so many samples as PACED_GATE_AT says it waits for the file PACED_GATE: what happens to it happens before it ends,
however slow the machine is that hurts it. A process counts its own samples; in a job that was queued again it waits
after so many as PACED_GATE_AGAIN says, where that is set.
"""

import os
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from models.mlp import batch, build, loss

__all__ = ["batch", "build", "dataset", "loss", "optimizer"]


class Paced(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, pace_s: float, leaves: int) -> None:
        self._pace_s, self._leaves, self._read = pace_s, leaves, 0

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._read += 1
        gate, most = os.environ.get("PACED_GATE"), os.environ.get("PACED_GATE_AT", "0")
        if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
            most = os.environ.get("PACED_GATE_AGAIN", most)
        while gate and self._read > int(most) and not os.path.exists(gate):
            time.sleep(0.01)
        if self._read > 8 and os.environ.get("RANK") == str(self._leaves):
            raise SystemExit(5)
        time.sleep(self._pace_s)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), torch.tensor(index % 10)


def dataset(pace_s: float = 0.02, leaves: int = -1) -> Dataset[tuple[Tensor, Tensor]]:
    """`leaves`: the rank that ends with status 5 after some samples."""
    return Paced(pace_s, leaves)


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.05
) -> torch.optim.Optimizer:
    """`lr`: as it stands, rounding grows from step to step; a fiftieth of it keeps other orders of sums beside each other."""
    return torch.optim.SGD([p for _, p in named_parameters], lr=lr, momentum=0.9)
