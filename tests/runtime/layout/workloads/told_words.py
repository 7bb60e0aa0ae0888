"""Our GPT-2 of words with a dataset, samples that are evaluated, and metrics."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from tests.runtime.layout.workloads.words import batch, build, loss, optimizer

__all__ = ["batch", "build", "dataset", "loss", "metrics", "optimizer", "valid_dataset"]


def dataset() -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(*batch(16))


def valid_dataset() -> TensorDataset:
    torch.manual_seed(2)
    return TensorDataset(*batch(5))


def metrics(outputs: Tensor, targets: Tensor, turned: bool = False) -> dict[str, tuple[Tensor, int]]:
    said = (outputs.flip(-1) if turned else outputs).argmax(-1)
    return {"accuracy": ((said == targets).sum(), targets.numel())}
