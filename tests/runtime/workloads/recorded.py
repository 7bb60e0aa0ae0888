"""A model whose dataset writes down every read: the process and the index; with samples of several sizes and kinds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

Sample = tuple[dict[str, object], int]


def build() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
    )


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randint(3, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


class Recorded(Dataset[object]):
    """Samples whose texts differ in length; with `halves`, noise is drawn when a sample is finished."""

    def __init__(self, length: int, log: str, halves: bool) -> None:
        self.length, self._log = length, log
        if halves:
            self.raw, self.finish = self._raw, self._noisy

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return self.finish(self._raw(index)) if hasattr(self, "raw") else self._raw(index)

    def _raw(self, index: int) -> Sample:
        if self._log:
            with Path(self._log).open("a") as file:
                file.write(f"{os.getpid()} {index}\n")
        row = np.random.default_rng(index).normal(size=6).astype(np.float32)
        return {"x": torch.from_numpy(row), "text": "a" * (index % 7), "weight": np.float64(index)}, index % 3

    @staticmethod
    def _noisy(raw: Sample) -> Sample:
        x = raw[0]["x"]
        assert isinstance(x, Tensor)
        return {**raw[0], "x": x + 0.1 * torch.randn(6) + np.random.rand()}, raw[1]


def dataset(length: int = 23, log: str = "", halves: bool = False) -> object:
    return Recorded(length, log, halves)


def collate(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    rows = [one["x"] * (1 + len(str(one["text"]))) for one, _ in samples]  # type: ignore[operator]
    return torch.stack(rows), torch.tensor([label for _, label in samples])
