"""More small models: what torch lets a user do and a tracer rarely sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.planner.capture_cases import Case, mse, next_token, tokens, vectors


class Base(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 3)


class Checkpoints(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.first, self.a(x), use_reentrant=False)
        return self.b(checkpoint(self.second, x, use_reentrant=True))


class Crooked(torch.autograd.Function):
    """Its backward is not the derivative of its forward, and it returns more than tensors."""

    @staticmethod
    def forward(ctx, x: Tensor, scale: float, y: Tensor) -> tuple[Tensor, None, Tensor]:  # type: ignore
        ctx.scale = scale
        return x * scale, None, y.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor, _: object, other: Tensor):  # type: ignore
        return gradient * 7 * ctx.scale, None, other * 3


class Functions(Base):
    def forward(self, x: Tensor) -> Tensor:
        y, nothing, z = Crooked.apply(self.a(x), 2.0, x * 2)
        assert nothing is None
        y, _, _ = Crooked.apply(y, 0.5, z)
        return self.b(y + z)


class Tripled(torch.autograd.Function):
    """Its backward is not the derivative of its forward, either; with a context apart, it takes keywords."""

    @staticmethod
    def forward(x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, float], output: Tensor) -> None:  # type: ignore
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore
        return gradient * 3 * ctx.scale, None


tripled = Tripled.apply


def thrice(x: Tensor, function: Callable[..., Tensor] = Tripled.apply) -> Tensor:
    return function(x)


class BoundFunctions(Base):
    def __init__(self) -> None:
        super().__init__()
        self.function = Tripled.apply

    def forward(self, x: Tensor) -> Tensor:
        y = tripled(self.a(x), 2.0)
        return self.b(thrice(y) + self.function(x * y, scale=0.5))


class Cells(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 4), nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4)
        c, outs = torch.zeros_like(h), []
        for t in range(x.shape[1]):
            h, c = self.lstm(self.a(x[:, t]), (h, c))
            outs.append(self.gru(h))
        return self.b(torch.stack(outs, 1).mean(1))


class Sizes(Base):
    def forward(self, x: Tensor) -> Tensor:
        n = x.size(0)
        back = torch.arange(n - 1, -1, -1)
        y = self.a(x) + torch.arange(n).unsqueeze(1) / 7
        return self.b(y)[back] + x.sum() / x.numel() + (n * 2 + 1) * 0.01


class SeveralResults(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        top, where = y.topk(2, dim=1)
        largest, _ = y.max(1, keepdim=True)
        ordered, _ = torch.sort(y.gather(1, where))
        left, right = torch.unbind(ordered, 1)
        return self.b(torch.cat([top * largest, left[:, None], right[:, None]], 1))


class WithoutGradients(Base):
    """Writes without gradients: into state, and into a tensor that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            y.clamp_(max=0.5)
        return self.b(y - self.average)


class NamesOfOurs(nn.Module):
    """Names that stage modules and graphs use themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.inputs, self.model, self.loss = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.index = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.loss(self.model(self.inputs(x) * self.index))


class Images(nn.Module):
    """Strides other than plain, transposed convolution, pooling with indices, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, stride=2)
        self.n, self.u, self.h = nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x.to(memory_format=torch.channels_last))
        z = self.u(F.relu(self.n(self.d(y)), inplace=True))
        z = F.interpolate(z, scale_factor=2.0, mode="bilinear")
        z, _ = F.max_pool2d(F.max_pool2d(z, 2), 2, return_indices=True)
        return self.h(F.adaptive_avg_pool2d(z + y[:, :, ::2, ::2], 1).flatten(1))


class Quantised(Base):
    """A straight-through estimator with its own code book."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        z = self.a(x)
        q = self.code((z[:, None] - self.code.weight).pow(2).sum(-1).argmin(1))
        commit = F.mse_loss(q, z.detach()) + F.mse_loss(z, q.detach())
        return {"y": self.b(z + (q - z).detach()), "commit": commit}


class Chance(Base):
    """Stochastic depth: what is drawn has to be drawn in the order of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for block in self.blocks:
            x = x + block(x) * (torch.rand(x.shape[0], 1) < 0.8).float() / 0.8
        return self.b(x + torch.bernoulli(torch.full_like(x, 0.5)))


class MadeWeights(nn.Module):
    """Weights made by a network, lists of parameters, a scalar parameter, a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.code = nn.Linear(4, 16), nn.Parameter(torch.randn(4))
        self.list = nn.ParameterList([torch.randn(4, 4) for _ in range(2)])
        self.heat = nn.Parameter(torch.tensor(0.5))
        self.last = nn.Bilinear(4, 4, 3)
        self.last.register_forward_hook(lambda _module, _inputs, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.make(self.code).view(4, 4))
        for weight in self.list:
            x = torch.tanh(x @ weight) * self.heat.exp()
        return self.last(x, x + torch.tensor(1.5) * self.heat)


class SparseTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.bag = nn.Embedding(11, 4, sparse=True), nn.EmbeddingBag(11, 4)
        self.head = nn.Linear(4, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.token(x) + self.bag(x)[:, None])


def settings(n: int) -> tuple[object, object]:
    return {
        "x": [torch.randn(n, 4), torch.randn(n, 4)],
        "mask": None,
        "flag": False,
        "scale": 1.5,
    }, torch.randn(n, 3)


class Settings(Base):
    """Inputs that are no tensors."""

    def forward(
        self, x: list[Tensor], mask: Tensor | None = None, flag: bool = True, scale: float = 2.0
    ) -> Tensor:
        y = self.a(x[0]) + self.a(x[1])
        y = y if mask is None else y * mask
        return self.b(y if flag else y * scale)


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4).double(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.double()).float())


class Selects(Base):
    """Sizes that the values of a tensor tell: no cut falls where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        rows = (x[:, 0] > -0.5).nonzero().squeeze(1)
        y = torch.zeros_like(y).index_add(0, rows, self.c(y[rows])) * y.numel()
        return self.b(y * y.sum().item())


class WritesItsInput(Base):
    """Whole and through a view; the batch stays as it was, also where the forward is done again."""

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5)
        y = self.a(x.clone())
        x[:, 0] = 0
        x.view(-1, 2, 2).mul_(2)
        return self.b(y.tanh() + x)


class CopiesWhole(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(torch.empty_like(y).copy_(y).tanh())


class Inference(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.a(x)
            with torch.inference_mode(False):
                z = self.a(x.clone())
        return self.b(y.clone().tanh() + z + self.made(x))

    @torch.inference_mode()
    def made(self, x: Tensor) -> Tensor:
        return self.a(x).sigmoid()


class Remembers(Base):
    """An attribute that a forward pass sets to what it is from then on."""

    size: tuple[int, ...] | None = None
    ready = False

    def forward(self, x: Tensor) -> Tensor:
        self.ready, self.size = True, (4, 3)
        return self.b(self.a(x) * self.size[1])


def selected_loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[targets > 0].pow(2).sum(), (targets > 0).sum()


CORNERS: dict[str, Callable[[], Case]] = {
    "checkpoints": lambda: (Checkpoints(), vectors(4), mse),
    "functions": lambda: (Functions(), vectors(4), mse),
    "bound_functions": lambda: (BoundFunctions(), vectors(4), mse),
    "cells": lambda: (Cells(), vectors(3, 4), mse),
    "sizes": lambda: (Sizes(), vectors(4), mse),
    "several_results": lambda: (SeveralResults(), vectors(4), mse),
    "without_gradients": lambda: (WithoutGradients(), vectors(4), mse),
    "names_of_ours": lambda: (NamesOfOurs(), vectors(4), mse),
    "images": lambda: (Images(), vectors(2, 8, 8), mse),
    "quantised": lambda: (
        Quantised(),
        vectors(4),
        lambda outputs, targets: mse(outputs["y"], targets) + outputs["commit"],
    ),
    "chance": lambda: (Chance(), vectors(4), mse),
    "made_weights": lambda: (MadeWeights(), vectors(4), mse),
    "sparse_tokens": lambda: (SparseTokens(), tokens, next_token),
    "settings": lambda: (Settings(), settings, mse),
    "selects": lambda: (Selects(), vectors(4), selected_loss),
    "writes_its_input": lambda: (WritesItsInput(), vectors(4), mse),
    "copies_whole": lambda: (CopiesWhole(), vectors(4), mse),
    "inference": lambda: (Inference(), vectors(4), mse),
    "remembers": lambda: (Remembers(), vectors(4), mse),
    "doubles": lambda: (Doubles(), vectors(4), mse),
}
