"""A stack of LSTMs that predicts the next frame of a sequence, in the sizes of DeepBench."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Shape(NamedTuple):
    hidden: int
    seq: int


# Every hidden size and number of time steps among the LSTMs in DeepBench's training set
# (code/kernels/rnn_problems.h of baidu-research/DeepBench). There a problem is a single layer: layers=1.
SIZES = {
    "tiny": Shape(hidden=32, seq=8),
    "h256": Shape(hidden=256, seq=150),
    "h512": Shape(hidden=512, seq=25),
    "h1024": Shape(hidden=1024, seq=25),
    "h1536": Shape(hidden=1536, seq=50),
    "h2048": Shape(hidden=2048, seq=25),
    "h4096": Shape(hidden=4096, seq=25),
}


class Recurrent(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        # One module a layer, not one of all layers: a pipeline may be cut between any two.
        self.layers = nn.ModuleList(nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        x = self.head(x)
        return x


def build(size: str = "h512", layers: int = 4) -> nn.Module:
    return Recurrent(_shape(size).hidden, layers)


def batch(n: int, size: str = "h512", seq: int | None = None) -> tuple[Tensor, Tensor]:
    """Returns random frames and the frames that follow them, [sample, time step, feature].

    Args: `n` is the number of samples; without `seq`, DeepBench's number of time steps for the size counts.
    """
    shape = _shape(size)
    steps = shape.seq if seq is None else seq
    frames = torch.randn(n, steps + 1, shape.hidden)
    return frames[:, :-1].contiguous(), frames[:, 1:].contiguous()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def _shape(size: str) -> Shape:
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    return SIZES[size]
