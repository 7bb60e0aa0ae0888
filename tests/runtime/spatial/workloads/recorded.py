"""Volumes in a file, read in part; every read is written down, with what the augmentation drew."""

import json
import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, SIDE = 6, 9


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv3d(3, 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


def build() -> nn.Module:
    return Net().double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    shape = (n, 1, SIDE, SIDE, SIDE)
    return torch.randn(shape, dtype=torch.float64), torch.randint(0, 2, (n, *shape[2:]))


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def optimizer(named_parameters):  # type: ignore[no-untyped-def]
    return torch.optim.SGD(named_parameters, lr=0.1)


class Volumes:
    """Labels come whole if `labels` says so, else in the same part."""

    def __init__(self, folder: str, labels: str) -> None:
        self.folder, self.labels = Path(folder), labels
        self.regions = labels != "unread"
        shape = (SAMPLES, 1, SIDE, SIDE, SIDE)
        self.file = np.memmap(self.folder / "volumes.f64", np.float64, "r", shape=shape)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: object) -> tuple[Tensor, Tensor]:
        return self.read(key, float(torch.rand(())) + random.random() + float(np.random.rand()))

    def read(self, key: object, factor: float) -> tuple[Tensor, Tensor]:
        i, region = key if isinstance(key, tuple) else (key, (slice(0, SIDE),) * 3)
        assert isinstance(i, int) and isinstance(region, tuple)
        row = {"index": i, "region": [[s.start, s.stop] for s in region], "factor": factor}
        with (self.folder / f"asked-{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        volume = torch.from_numpy(np.array(self.file[(i, slice(None), *region)]))
        labels = torch.from_numpy(np.array(self.file[i, 0])) > 0
        if self.labels == "parts":
            labels = labels[region]
        return volume * factor, labels.long()


class Halves(Volumes):
    """Draws when a sample is finished."""

    def raw(self, key: object) -> tuple[Tensor, Tensor]:
        return self.read(key, 1.0)

    def finish(self, raw: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return raw[0] * float(torch.rand(())), raw[1]

    def __getitem__(self, key: object) -> tuple[Tensor, Tensor]:
        return self.finish(self.raw(key))


def dataset(folder: str = "", labels: str = "parts", halves: bool = False) -> object:
    return (Halves if halves else Volumes)(folder, labels)
