"""A small network, its weights, and a volume that they are applied to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from planner.workload import load

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), norm
        self.deep = nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        y = self.up(self.deep(torch.max_pool2d(x, 2)))
        y = nn.functional.pad(y, (0, x.shape[3] - y.shape[3], 0, x.shape[2] - y.shape[2]))
        return self.last(torch.cat([x, y], 1))

def build(norm: str = "batch"):
    return Net(nn.BatchNorm2d(4) if norm == "batch" else nn.InstanceNorm2d(4, affine=True))

def batch(n):
    return torch.rand(n, 1, 8, 8), torch.rand(n, 3, 8, 8)

def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""
SIZE = (37, 29)
Place = tuple[Path, np.ndarray[Any, Any]]  # the folder, and what the whole volume gives


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("infer")
    (folder / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    module = load(str(folder / "net.py")).build().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()  # type: ignore[union-attr, operator]
    save_file(module.state_dict(), folder / "weights.safetensors")
    volume = np.random.default_rng(0).standard_normal(SIZE).astype("f4")
    np.save(folder / "in.npy", volume)
    with torch.no_grad():
        expected = module(torch.from_numpy(volume)[None, None])[0].numpy()
    return folder, expected
