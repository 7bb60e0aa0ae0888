"""What the updates of states that a forward writes depend on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from planner.capture import capture


class Writes(nn.Linear):
    """Writes its buffers in the way of a name."""

    def __init__(self, way: str) -> None:
        super().__init__(3, 3)
        self.way = way
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("other", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            getattr(self, self.way)(x)
        return super().forward(x) * self.other

    def counted(self, x: Tensor) -> None:
        self.kept.add_(1)

    def averaged(self, x: Tensor) -> None:
        self.kept.mul_(0.9).add_(x.mean(0))

    def drawn_to(self, x: Tensor) -> None:
        self.kept.lerp_(x.mean(0), 0.1)

    def largest(self, x: Tensor) -> None:
        self.kept.copy_(torch.maximum(self.kept, x.amax(0)))

    def latest(self, x: Tensor) -> None:
        self.kept.copy_(x[0])

    def scaled_by_samples(self, x: Tensor) -> None:
        self.kept.mul_(x.mean())

    def scaled_in_part(self, x: Tensor) -> None:
        self.kept[:2].mul_(0.5)
        self.kept.add_(x.mean(0))

    def norm(self, x: Tensor) -> None:
        self.kept.copy_(self.weight.norm(dim=0) + self.kept)

    def noise(self, x: Tensor) -> None:
        self.kept.copy_(torch.rand(3))

    def read(self, x: Tensor) -> None:
        self.other.mul_(0.9).add_(x.mean(0))
        self.kept.copy_(self.other + self.weight[0])

    def read_and_own(self, x: Tensor) -> None:
        self.other.mul_(0.9).add_(self.weight[0])
        self.kept.add_(self.other * x.mean(0))


@pytest.mark.parametrize(
    ("way", "kept", "other"),
    [
        ("counted", "", ""),
        ("averaged", "", ""),
        ("drawn_to", "", ""),
        ("largest", "samples", ""),
        ("latest", "samples", ""),
        ("scaled_by_samples", "samples", ""),
        ("scaled_in_part", "samples", ""),
        ("norm", "own", ""),
        ("noise", "samples", ""),
        ("read", "samples", "samples"),
        ("read_and_own", "", "own"),
    ],
)
def test_how_holders_keep_a_state_equal_follows_from_what_its_updates_read(
    way: str, kept: str, other: str
) -> None:
    module = nn.Sequential(Writes(way), nn.Linear(3, 3))
    graph = capture(module, lambda n: (torch.randn(n, 3),) * 2, nn.functional.mse_loss).graph
    assert graph.buffer["0.kept"].mutated
    assert (graph.buffer["0.kept"].update, graph.buffer["0.other"].update) == (kept, other)
