"""A classifier in double precision whose middle module writes a state of its own in every forward."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import parametrizations, spectral_norm


class Averaged(nn.Linear):
    """Scales by an average of its inputs so far, which it reads as well unless `blind`."""

    def __init__(self, blind: bool = False) -> None:
        super().__init__(6, 6)
        self.blind = blind
        self.register_buffer("ema", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.ema.mul_(0.9)
            self.ema.add_(x.mean(0), alpha=0.1)
        return super().forward(x) if self.blind else super().forward(x) * self.ema


class Smoothed(nn.Linear):
    """Adds what an average of its own weights gives; a counter sets the share of it."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("slow", torch.zeros(6, 6))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(1)
            self.slow.mul_(0.9).add_(0.1 * self.weight)
        return super().forward(x) + linear(x, self.slow) / self.seen


class Bank(nn.Linear):
    """Compares its outputs with those of samples before, which it keeps in a queue."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.register_buffer("queue", torch.eye(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y = y + 0.1 * (y @ self.queue.t().clone()) @ self.queue.clone()
        with torch.no_grad():
            self.queue.copy_(torch.cat([self.queue[1:], y[:1].tanh()]))
        return y


class Rows(nn.Module):
    """Looks up rows that are shortened where they are long."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.line = nn.Embedding(9, 6, max_norm=0.5), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x) + self.rows(x[:, 0].abs().long() % 9)


MIDDLES = {
    "spectral": lambda: spectral_norm(nn.Linear(6, 6)),
    "parametrised": lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
    "smoothed": Smoothed,
    "blind": lambda: Averaged(blind=True),
    "ema": Averaged,
    "bank": Bank,
    "rows": nn.Identity,
    "synchronised": lambda: nn.SyncBatchNorm(6),
}


def build(kind: str = "spectral") -> nn.Module:
    first = Rows() if kind == "rows" else nn.Linear(4, 6)
    rest = (nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    return nn.Sequential(first, nn.Tanh(), MIDDLES[kind](), *rest).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(3, (n,), generator=g)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets)


class ClippingInside(torch.optim.SGD):
    """Clips by the norm of all its parameters, as timm's Lamb does, in its step."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        super().step()


def optimizer(named: Iterable[tuple[str, nn.Parameter]], inside: bool = False) -> torch.optim.Optimizer:
    kind = ClippingInside if inside else torch.optim.SGD
    return kind([p for _, p in named], lr=0.1, momentum=0.9)
