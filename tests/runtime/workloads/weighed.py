"""Weights that are made of weights, and weights that are used twice, in layers whose weights are larger than what
passes through them; with a recurrent layer among them, stages split their backward by the graph walk."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

WIDTH, STEPS = 48, 4


class Product(nn.Module):
    """A weight of low rank, made in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(WIDTH, WIDTH // 4) / WIDTH**0.5)
        self.right = nn.Parameter(torch.randn(WIDTH // 4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, self.left @ self.right))


class Twice(nn.Module):
    """One weight, made of others or not, in both halves of a block."""

    def __init__(self, made: bool) -> None:
        super().__init__()
        self.inner = Product() if made else nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.inner, nn.Linear):
            return self.inner(F.gelu(self.inner(x)))
        weight = self.inner.left @ self.inner.right
        return F.linear(F.gelu(F.linear(x, weight)), weight)


class Maker(nn.Module):
    """A layer that takes in weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(WIDTH, WIDTH // 4) / WIDTH**0.5)
        self.right = nn.Parameter(torch.randn(WIDTH // 4, WIDTH))

    def forward(self) -> Tensor:
        return self.left @ self.right


class Made(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.norm = Maker(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.maker()
        return F.linear(self.norm(F.gelu(F.linear(self.norm(x), weight))), weight)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.inner(x))


class Weighed(nn.Module):
    def __init__(self, kind: str, blocks: int, walks: bool) -> None:
        super().__init__()
        made: dict[str, Callable[[], nn.Module]] = {
            "product": Product,
            "made": Made,
            "normed": Normed,
            "twice": lambda: Twice(False),
            "product-twice": lambda: Twice(True),
        }
        self.before = nn.ModuleList(made[kind]() for _ in range(blocks))
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True) if walks else None
        self.after = nn.ModuleList(made[kind]() for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.before:
            x = block(x)
        if self.recurrent is not None:
            x, _ = self.recurrent(x)
        for block in self.after:
            x = block(x)
        return x


def build(kind: str = "product", blocks: int = 2, walks: bool = False) -> nn.Module:
    return Weighed(kind, blocks, walks)


def batch(n: int) -> tuple[Tensor, Tensor]:
    frames = torch.randn(n, STEPS + 1, WIDTH)
    return frames[:, :-1].contiguous(), frames[:, 1:].contiguous()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)
