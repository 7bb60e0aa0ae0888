"""CosmoFlow from files that are read in part: each rank of a spatial group reads its own hyperslab and no more.

    python examples/hyperslabs.py universes.h5       # makes a small file: .h5 by h5py, .zarr by zarr, .npy by numpy
    shardwright profile examples/hyperslabs.py --set file=universes.h5 --spatial 2 -o profile.yaml
    shardwright plan examples/hyperslabs.py --profile profile.yaml --cluster plans/clusters/laptop.yaml --batch 4 \
        --set file=universes.h5 --fix spatial=2 -o plan.yaml
    shardwright launch plan.yaml --local --steps 4

A dataset that says `regions = True` is asked for `data[index, region]`, where region holds one slice for each spatial
dimension, and gives that part of the sample; `data[index]` is the whole one. Targets come whole, or, where they are
images of the same size, in the same part. Whatever it draws at random is the same on all ranks of a sample, a number
such as the contrast here; noise is to be drawn for the whole sample and cut (docs/regions.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, CHANNELS, SIDE, PARAMETERS = 16, 4, 32, 4
VOLUMES, TARGETS = "full", "unitPar"
Region = tuple[slice, ...]


def build() -> nn.Module:
    layers: list[nn.Module] = []
    widths = (CHANNELS, 8, 16, 32)
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * (SIDE // 8) ** 3, PARAMETERS))


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, CHANNELS, SIDE, SIDE, SIDE), torch.randn(n, PARAMETERS)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


class Universes:
    regions = True

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as (volumes, _):
            self.length: int = volumes.shape[0]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int | tuple[int, Region]) -> tuple[Tensor, Tensor]:
        index, region = key if isinstance(key, tuple) else (key, (slice(None),) * 3)
        with opened(self.path) as (volumes, targets):
            volume = np.array(volumes[(index, slice(None), *region)])
            target = np.array(targets[index])
        contrast = 1 + 0.1 * torch.randn(())
        return torch.from_numpy(volume) * contrast, torch.from_numpy(target)


def dataset(file: str = "universes.npy") -> Universes:
    return Universes(Path(file))


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Volumes and targets; what is indexed is what is read."""
    if path.suffix == ".h5":
        import h5py  # type: ignore[import-not-found, import-untyped, unused-ignore]

        with h5py.File(path) as file:
            yield file[VOLUMES], file[TARGETS]
    elif path.suffix == ".zarr":
        import zarr  # type: ignore[import-not-found, import-untyped, unused-ignore]

        group = zarr.open_group(path, mode="r")
        yield group[VOLUMES], group[TARGETS]
    else:
        yield np.load(path, mmap_mode="r"), np.load(path.with_suffix(".targets.npy"), mmap_mode="r")


def write(path: Path) -> None:
    random = np.random.default_rng(0)
    volumes = random.standard_normal((SAMPLES, CHANNELS, SIDE, SIDE, SIDE), np.float32)
    targets = random.standard_normal((SAMPLES, PARAMETERS), np.float32)
    chunk = (1, CHANNELS, SIDE // 4, SIDE, SIDE)  # a part of the depth is a few chunks
    if path.suffix == ".h5":
        import h5py  # type: ignore[import-not-found, import-untyped, unused-ignore]

        with h5py.File(path, "w") as file:
            file.create_dataset(VOLUMES, data=volumes, chunks=chunk)
            file.create_dataset(TARGETS, data=targets)
    elif path.suffix == ".zarr":
        import zarr  # type: ignore[import-not-found, import-untyped, unused-ignore]

        group = zarr.open_group(path, mode="w")
        group.create_array(VOLUMES, data=volumes, chunks=chunk)
        group.create_array(TARGETS, data=targets)
    else:
        np.save(path, volumes)
        np.save(path.with_suffix(".targets.npy"), targets)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
