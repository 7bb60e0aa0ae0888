"""One layer whose weight and bias are parameters, or made of others, or one of each."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn, randn


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b, self.z, self.k = (_parameter(*shape) for shape in ((4, 4), (4,), (4,), (4, 4, 3)))
        self.frozen = nn.Parameter(randn(4, 4).double(), requires_grad=False)
        self.c = nn.Parameter(randn(4, 4, dtype=torch.complex128))


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(randn(*shape).double() / 2)


def _complex(h: Held, x: Tensor) -> Tensor:
    y = F.linear(torch.complex(x, x * h.z), h.c)
    return y.real + y.imag


def _kernel(x: Tensor, kernel: Tensor, bias: Tensor, transposed: bool = False) -> Tensor:
    convolve = F.conv_transpose1d if transposed else F.conv1d
    return convolve(x.unsqueeze(2), kernel, bias, padding=1).squeeze(2)


def _rows(x: Tensor, table: Tensor) -> Tensor:
    return x + F.embedding(torch.tensor([1, 3, 3, 0]), table).mean(0)


KINDS: dict[str, Callable[[Held, Tensor], Tensor]] = {
    "plain": lambda h, x: F.linear(x, h.w, h.b) * h.z,
    "frozen weight": lambda h, x: F.linear(x, h.frozen, h.b),
    "made weight": lambda h, x: F.linear(x, h.w * h.z, h.b),
    "frozen weight under a gain": lambda h, x: F.linear(x, h.frozen * h.z, h.b),
    "made bias": lambda h, x: F.linear(x, h.w, h.b + h.z),
    "weight out of activations": lambda h, x: F.linear(x, x.mean(0, keepdim=True) * h.w, h.b),
    "activations as the weight": lambda h, x: F.linear(h.w, x).t(),
    "weight as its own input": lambda h, x: x @ F.linear(h.w, h.w),
    "weight used otherwise too": lambda h, x: F.linear(x, h.w) @ h.w,
    "vector as the weight": lambda h, x: x * F.linear(x, h.z).unsqueeze(1),
    "one sample": lambda h, x: F.linear(x.mean(0), h.w, h.b) + x,
    "complex weight": _complex,
    "kernel": lambda h, x: _kernel(x, h.k, h.b),
    "made kernel": lambda h, x: _kernel(x, h.k.flip(2), h.b),
    "kernel with a made bias": lambda h, x: _kernel(x, h.k, h.b * h.z, transposed=True),
    "kernel over one sample": lambda h, x: F.conv1d(x.t(), h.k, h.b, padding=1).t(),
    "table": lambda h, x: _rows(x, h.w),
    "made table": lambda h, x: _rows(x, h.w * h.z),
}


class Layer(Held):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(KINDS[self.kind](self, x))


def build(kind: str = "plain") -> nn.Module:
    return Layer(kind)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return randn(n, 4).double(), randn(n, 4).double()


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)
