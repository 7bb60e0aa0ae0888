"""Odd models as their users would write them, each around one habit of the field.

Nearly all should train; the rest are refused with a place and a cure, and none may train otherwise than by itself.
Samples are vectors of 8 numbers where a case says nothing else.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.zoo.parts import Batch, Case, Make

WIDTH = 8
MAKES: dict[str, Make] = {}
OPTIMIZERS: dict[str, Callable[..., object]] = {}


def vectors(n: int) -> tuple[object, object]:
    return torch.randn(n, WIDTH), torch.randn(n, WIDTH)


def pictures(n: int) -> tuple[object, object]:
    return torch.randn(n, 3, 8, 8), torch.randint(0, 4, (n,))


def words(n: int) -> tuple[object, object]:
    return torch.randint(1, 16, (n, 6)), torch.randn(n, WIDTH)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def classes(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def stranger(
    name: str, batch: Batch = vectors, loss: Callable[..., object] | None = None
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Notes what makes a module as a case of that name; a class of modules, or a function."""

    def note(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        MAKES[name] = partial(_case, build, batch, loss or (classes if batch is pictures else mse))
        return build

    return note


def _case(build: Callable[[], nn.Module], batch: Batch, loss: Callable[..., object]) -> Case:
    return build(), batch, loss


def cases() -> dict[str, Make]:
    """Returns all cases by name."""
    return dict(MAKES)


class Body(nn.Module):
    """Two linear layers, between which and after which a case does what it is named for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.start()

    def start(self) -> None: ...

    def forward(self, x: Tensor) -> Any:
        return self.last(self.odd(self.first(x).relu()))

    def odd(self, h: Tensor) -> Tensor:
        return h


# Functions of one's own, and hooks


class Clamped(torch.autograd.Function):
    """Clamps, and lets gradients pass as if it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * (1 + 0.1 * torch.sign(x)), None


@stranger("an autograd function")
class OwnFunction(Body):
    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = Clamped.apply(h, 0.5)
        return made


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.3 * gradient


@stranger(
    "gradient reversal of a domain head", loss=lambda made, t: mse(made[0], t) + made[1].square().mean()
)
class Adversarial(Body):
    def start(self) -> None:
        self.domain = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x).relu()
        return self.last(h), self.domain(Reversed.apply(h))


@stranger("a forward hook that changes an output")
class Hooked(Body):
    def start(self) -> None:
        self.first.register_forward_hook(lambda module, given, made: made * 1.5)


@stranger(
    "a forward hook that collects activations", loss=lambda made, t: mse(made[0], t) + made[1].abs().mean()
)
class Collecting(Body):
    def start(self) -> None:
        self.seen: list[Tensor] = []
        self.first.register_forward_hook(lambda module, given, made: self.seen.append(made))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.clear()
        y = self.last(self.first(x).relu())
        return y, self.seen[0]


@stranger("a pre-hook that scales the input")
class PreHooked(Body):
    def start(self) -> None:
        self.last.register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))


@stranger("a hook on the gradient of a weight")
class GradientHook(Body):
    def start(self) -> None:
        self.first.weight.register_hook(lambda gradient: gradient * 0.1)


@stranger("a full backward hook")
class BackwardHook(Body):
    def start(self) -> None:
        self.first.register_full_backward_hook(lambda module, given, made: (given[0],))


@stranger("a hook on an activation")
class ActivationHook(Body):
    def odd(self, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return h


# Weights made of others


@stranger("weight_norm and spectral_norm")
class Normed(Body):
    def start(self) -> None:
        self.first, self.last = weight_norm(self.first), spectral_norm(self.last)


@stranger("weight_norm of old")
class NormedOfOld(Body):
    def start(self) -> None:
        self.first = torch.nn.utils.weight_norm(self.first)


@stranger("spectral_norm of old")
class SpectralOfOld(Body):
    def start(self) -> None:
        self.first = torch.nn.utils.spectral_norm(self.first)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


@stranger("parametrizations of one's own")
class Parametrised(Body):
    def start(self) -> None:
        self.middle = nn.Linear(16, 16)
        parametrize.register_parametrization(self.middle, "weight", Symmetric())
        self.turn = orthogonal(nn.Linear(16, 16, bias=False))

    def odd(self, h: Tensor) -> Tensor:
        return self.turn(self.middle(h))


class StandardConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


@stranger("weight standardisation", batch=pictures)
class Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = StandardConv(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@stranger("one weight by three names")
class TiedThrice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.b.weight = self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).tanh()).tanh())


@stranger("a transposed tie of an autoencoder")
class TiedTransposed(Body):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.first(x).relu(), self.first.weight.t(), self.last.bias)


@stranger("lazy modules")
class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LazyLinear(16), nn.LazyLinear(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


@stranger("lazy modules that have seen a sample")
def seen_lazy() -> nn.Module:
    module = Lazy()
    module(torch.zeros(1, WIDTH))
    return module


@stranger("adapters of low rank on a frozen layer")
class LowRank(Body):
    def start(self) -> None:
        self.first.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, WIDTH) * 0.1), nn.Parameter(torch.zeros(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) + x @ self.down.t() @ self.up.t()).relu())


@stranger("a network that makes the weights of another")
class Hyper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(WIDTH, WIDTH * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.maker(x).view(-1, WIDTH, WIDTH)
        return torch.bmm(weights, x.unsqueeze(2)).squeeze(2)


# State


@stranger("a buffer updated in forward")
class Running(Body):
    def start(self) -> None:
        self.register_buffer("mean", torch.zeros(16))

    def odd(self, h: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return h - self.mean


@stranger("a counter of steps that warms up")
class Warming(Body):
    def start(self) -> None:
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def odd(self, h: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return h * torch.clamp(self.steps / 10.0, max=1.0)


def _teacher(made: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return mse(made[0], targets) + mse(made[0], made[1].detach())


@stranger("a teacher that follows in forward", loss=_teacher)
class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for mine, its in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.mul_(0.9).add_(its, alpha=0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.follow()
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


@stranger("a teacher that follows by its data", loss=_teacher)
class TeacherData(Teacher):
    def follow(self) -> None:
        for mine, its in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.data = mine.data * 0.9 + its.data * 0.1


@stranger("a teacher held as buffers", loss=_teacher)
class TeacherBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        for name, x in self.student.named_parameters():
            self.register_buffer(name.replace(".", "_"), x.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        taught = {}
        for name, its in self.student.named_parameters():
            mine = getattr(self, name.replace(".", "_"))
            if self.training:
                with torch.no_grad():
                    mine.mul_(0.9).add_(its, alpha=0.1)
            taught[name] = mine
        return self.student(x), torch.func.functional_call(self.student, taught, x)


@stranger(
    "a queue of negatives as in MoCo",
    loss=classes,
    batch=lambda n: (torch.randn(n, WIDTH), torch.zeros(n).long()),
)
class Queue(Body):
    def start(self) -> None:
        self.register_buffer("queue", F.normalize(torch.randn(16, WIDTH), dim=1))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.last(self.first(x).relu()), dim=1)
        logits = torch.cat([(q * x).sum(1, keepdim=True), q @ self.queue.clone().t()], 1)
        if self.training:
            with torch.no_grad():
                n, start = q.shape[0], int(self.at)
                self.queue[start : start + n] = q
                self.at[0] = (start + n) % 16
        return logits


@stranger("a cache in a mutable default")
class CachedDefault(Body):
    def odd(self, h: Tensor, cache: dict[str, Tensor] = {}) -> Tensor:  # noqa: B006
        before = cache.get("mean", torch.zeros(16))
        cache["mean"] = h.detach().mean(0)
        return h - before


@stranger("a cache of positions by length")
class CachedTable(Body):
    def start(self) -> None:
        self.tables: dict[int, Tensor] = {}

    def odd(self, h: Tensor) -> Tensor:
        if h.shape[1] not in self.tables:
            self.tables[h.shape[1]] = torch.linspace(0, 1, h.shape[1])
        return h + self.tables[h.shape[1]]


@stranger("an attribute for logging")
class Logging(Body):
    def odd(self, h: Tensor) -> Tensor:
        self.last_norm = h.detach().norm()
        return h


@stranger("vector quantisation with moving codes", loss=lambda made, t: mse(made[0], t) + made[1])
class Codes(Body):
    def start(self) -> None:
        self.register_buffer("codes", torch.randn(6, 16))
        self.register_buffer("sizes", torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        chosen = torch.cdist(h.detach(), self.codes).argmin(1)
        found = self.codes[chosen]
        if self.training:
            hot = F.one_hot(chosen, 6).to(h.dtype)
            with torch.no_grad():
                self.sizes.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.codes.mul_(0.9).add_(hot.t() @ h / self.sizes.clamp(min=1).unsqueeze(1), alpha=0.1)
        return self.last(h + (found - h).detach()), F.mse_loss(h, found)


# Inputs and outputs


@dataclass
class Made:
    logits: Tensor
    hidden: Tensor


@stranger("outputs in a dataclass", loss=lambda made, t: mse(made.logits, t) + made.hidden.square().mean())
class DataOut(Body):
    def forward(self, x: Tensor) -> Made:
        h = self.first(x).relu()
        return Made(logits=self.last(h), hidden=h)


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


@stranger(
    "outputs in a named tuple",
    loss=lambda made, t: (made.spread.exp() * (made.mean - t) ** 2 - made.spread).mean(),
)
class NamedOut(Body):
    def start(self) -> None:
        self.spread = nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Pair:
        h = self.first(x).relu()
        return Pair(mean=self.last(h), spread=self.spread(h).tanh())


def _nested(made: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    parts = [mse(x, targets["y"]) for x in made["heads"]]
    return torch.stack(parts).mean() + made["more"]["hidden"][0].abs().mean() + made["more"]["weight"] * 0.1


@stranger(
    "nested dictionaries, lists and tuples",
    batch=lambda n: (
        ({"a": torch.randn(n, WIDTH), "b": [torch.randn(n, WIDTH)]},),
        {"y": torch.randn(n, WIDTH)},
    ),
    loss=_nested,
)
class Nested(Body):
    def forward(self, given: dict[str, Any]) -> dict[str, Any]:
        h = self.first(given["a"] + given["b"][0]).relu()
        return {"heads": [self.last(h), self.last(h * 2)], "more": OrderedDict(hidden=(h, None), weight=0.5)}


@stranger(
    "arguments by keyword with defaults",
    batch=lambda n: ({"x": torch.randn(n, WIDTH)}, torch.randn(n, WIDTH)),
)
class Keywords(Body):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 2.0) -> Tensor:
        h = self.first(x).relu() * scale
        return self.last(h if mask is None else h * mask)


@stranger(
    "a dataclass as input",
    batch=lambda n: (Pair(torch.randn(n, WIDTH), torch.randn(n, WIDTH)), torch.randn(n, WIDTH)),
)
class TakesPair(Body):
    def forward(self, mean: Tensor, spread: Tensor) -> Tensor:
        return self.last(self.first(mean + spread))


@stranger("in-place operations on the input")
class WritesInput(Body):
    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(1, keepdim=True)
        x /= x.std(1, keepdim=True) + 1e-5
        return self.last(self.first(x).relu_())


@stranger("einops-like rearrangement", batch=pictures)
class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(48, 16), nn.Linear(4, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 4 * 4 * c)
        x = self.embed(x)
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(1))


@stranger("rearrange of einops", batch=pictures)
class Einops(Patches):
    def forward(self, x: Tensor) -> Tensor:
        from einops import rearrange, reduce

        x = self.embed(rearrange(x, "n c (h p) (w q) -> n (h w) (p q c)", p=4, q=4))
        return self.head(reduce(x, "n t d -> n d", "mean"))


# Shapes and values that depend on data


@stranger("shapes that depend on the data")
class Masking(Body):
    def odd(self, h: Tensor) -> Tensor:
        kept = h[h.abs().sum(1) > 1.0]
        return h + kept.sum(0)


@stranger("a call of .item()")
class Items(Body):
    def odd(self, h: Tensor) -> Tensor:
        return h / max(h.detach().abs().max().item(), 1e-3)


@stranger("a branch on a value")
class Branching(Body):
    def odd(self, h: Tensor) -> Tensor:
        return h * 2 if h.mean() > 0.2 else h * 3


@stranger("numpy in the middle")
class Numpy(Body):
    def odd(self, h: Tensor) -> Tensor:
        scale = torch.from_numpy(h.detach().numpy().std(axis=0) + 1.0)
        return h * scale


@stranger("routing among experts", loss=lambda made, t: mse(made[0], t) + 0.01 * made[1])
class Experts(Body):
    def start(self) -> None:
        self.router = nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x).relu()
        chances = self.router(h).softmax(1)
        weight, chosen = chances.topk(2, dim=1)
        made = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == i)
            made = made.index_add(0, row, expert(h[row]) * weight[row, slot].unsqueeze(1))
        share = F.one_hot(chosen[:, 0], 3).float().mean(0)
        return self.last(made), (share * chances.mean(0)).sum() * 3


@stranger("dense routing among experts")
class DenseExperts(Body):
    def start(self) -> None:
        self.router = nn.Linear(16, 3)
        self.experts = nn.Parameter(torch.randn(3, 16, 16) * 0.2)

    def odd(self, h: Tensor) -> Tensor:
        weight = torch.zeros(h.shape[0], 3)
        top, chosen = self.router(h).topk(1, dim=1)
        weight = weight.scatter(1, chosen, top.sigmoid())
        return torch.einsum("ni,eij,ne->nj", h, self.experts, weight)


@stranger(
    "a loss over all pairs of the batch", loss=lambda made, t: classes(made, torch.arange(made.shape[0]))
)
class Contrastive(Body):
    def forward(self, x: Tensor) -> Tensor:
        a = F.normalize(self.last(self.first(x).relu()), dim=1)
        return a @ F.normalize(x, dim=1).t() / 0.1


class Clip(Body):
    """Outputs have a row a sample; the loss sets them against each other."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.last(self.first(x).relu()), dim=1), F.normalize(x, dim=1)


@stranger("a loss over all pairs, of towers")
def clip() -> nn.Module:
    return Clip()


def _clip(made: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    logits = made[0] @ made[1].t() / 0.1
    return F.cross_entropy(logits, torch.arange(len(logits)))


MAKES["a loss over all pairs, of towers"] = partial(_case, clip, vectors, _clip)


# Random numbers


@stranger("noise in forward")
class Noisy(Body):
    def odd(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h) if self.training else h


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.rand(x.shape[0], 1).add(0.8).floor() / 0.8


@stranger("DropPath and dropout")
class Paths(Body):
    def start(self) -> None:
        self.drop, self.path = nn.Dropout(0.1), DropPath()

    def odd(self, h: Tensor) -> Tensor:
        return h + self.path(self.drop(h))


@stranger("layers that are dropped at random")
class LayerDrop(Body):
    def start(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def odd(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or torch.rand(()) > 0.3:
                h = h + layer(h)
        return h


@stranger(
    "mixup in forward",
    loss=lambda made, t: made[1] * mse(made[0], t) + (1 - made[1]) * mse(made[0], t[made[2]]),
)
class Mixup(Body):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, other = torch.rand(()), torch.randperm(x.shape[0])
        return self.last(self.first(share * x + (1 - share) * x[other]).relu()), share, other


@stranger("a resize drawn by Python", batch=pictures)
class Resizing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        import random

        side = random.choice([6, 8, 10])
        x = F.interpolate(x, size=(side, side), mode="bilinear")
        return self.head(self.conv(x).relu().mean((2, 3)))


@stranger("a resize drawn by torch", batch=pictures)
class ResizingTorch(Resizing):
    def forward(self, x: Tensor) -> Tensor:
        side = int(torch.randint(6, 10, ()))
        return self.head(self.conv(F.interpolate(x, size=side)).relu().mean((2, 3)))


@stranger("a generator of one's own")
class Generator(Body):
    def start(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def odd(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn(h.shape[1], generator=self.generator)


@stranger("samples of a distribution")
class Variational(Body):
    def odd(self, h: Tensor) -> Tensor:
        mean, spread = h, F.softplus(h)
        return torch.distributions.Normal(mean, spread + 0.1).rsample() if self.training else mean


@stranger("Gumbel softmax")
class Gumbel(Body):
    def odd(self, h: Tensor) -> Tensor:
        return F.gumbel_softmax(h, tau=0.7, hard=True) * h


# Backward of another kind


@stranger("a checkpointed block")
class Checkpointed(Body):
    def start(self) -> None:
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 16))

    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.block, h, use_reentrant=False)
        return checkpoint_sequential(self.block, 2, made, use_reentrant=False)


@stranger("a checkpointed block, re-entrant")
class CheckpointedOld(Checkpointed):
    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = checkpoint(self.block, h, use_reentrant=True)
        return made


def _penalised(made: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return mse(made[0], targets) + made[1]


@stranger("a gradient penalty", loss=_penalised)
class Penalised(Body):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.last(self.first(x).tanh())
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y, (gradient.norm(dim=1) - 1).square().mean()


@stranger("forces as gradients of an energy", loss=lambda made, t: mse(made[1], t))
class Forces(Body):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        energy = lambda v: self.last(self.first(v).tanh()).sum()  # noqa: E731
        return self.last(self.first(x).tanh()), torch.func.grad(energy)(x)


@stranger(
    "a stopped gradient and a straight-through estimate",
    loss=lambda made, t: -F.cosine_similarity(made[0], made[1].detach()).mean(),
)
class Stopped(Body):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        h = h + (h.round() - h).detach()
        return self.last(h), x


def _gan(made: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    real, fake, fooled = made
    return F.softplus(-real).mean() + F.softplus(fake).mean() + F.softplus(-fooled).mean()


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.judge = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.maker(x.flip(1))
        frozen = {name: p.detach() for name, p in self.judge.named_parameters()}
        return self.judge(x), self.judge(fake.detach()), torch.func.functional_call(self.judge, frozen, fake)


@stranger("a GAN with one optimizer of two groups", loss=_gan)
def gan() -> nn.Module:
    return Gan()


@stranger("a GAN with two optimizers", loss=_gan)
def gan_of_two() -> nn.Module:
    return Gan()


def _groups(named: Any) -> torch.optim.Optimizer:
    both = list(named)
    halves = [[p for name, p in both if name.startswith(part)] for part in ("maker", "judge")]
    return torch.optim.SGD(
        [{"params": half, "lr": lr} for half, lr in zip(halves, (0.01, 0.02), strict=True) if half]
    )


def _two(named: Any) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    both = list(named)
    halves = [[p for name, p in both if name.startswith(part)] for part in ("maker", "judge")]
    return torch.optim.SGD(halves[0], lr=0.01), torch.optim.SGD(halves[1], lr=0.02)


OPTIMIZERS |= {"a GAN with one optimizer of two groups": _groups, "a GAN with two optimizers": _two}


class Balanced(nn.Module):
    """A loss that learns the weights of its terms, as users write one."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))

    def forward(self, made: Tensor, targets: Tensor) -> Tensor:
        terms = torch.stack([F.mse_loss(made, targets), F.l1_loss(made, targets)])
        return (terms * (-self.logs).exp() + self.logs).sum()


@stranger("a loss with weights of its own", loss=Balanced())
class WithLoss(Body): ...


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, made: Tensor, targets: Tensor) -> Tensor:
        loss = F.mse_loss(made, targets)
        self.scale = 0.9 * self.scale + 0.1 * loss.detach()
        return loss / self.scale


@stranger("a loss that remembers", loss=Scaled())
class WithMemory(Body): ...


@stranger("a loss that the model holds", loss=lambda made, t: made[1](made[0], t))
class HoldsLoss(Body):
    def start(self) -> None:
        self.criterion = nn.SmoothL1Loss()

    def forward(self, x: Tensor) -> tuple[Tensor, nn.Module]:
        return self.last(self.first(x).relu()), self.criterion


# Kinds of numbers


@stranger("complex numbers")
class Complex(Body):
    def start(self) -> None:
        self.turn = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64) * 0.2)

    def odd(self, h: Tensor) -> Tensor:
        return torch.view_as_real(h.to(torch.complex64) @ self.turn).norm(dim=2)


@stranger("a parameter of complex numbers")
class ComplexWeight(Body):
    def start(self) -> None:
        self.turn = nn.Parameter(torch.randn(16, dtype=torch.cfloat))

    def odd(self, h: Tensor) -> Tensor:
        return (h * self.turn).real


@stranger("an empty parameter and a single number")
class Empty(Body):
    def start(self) -> None:
        self.none, self.scale = nn.Parameter(torch.zeros(0, 16)), nn.Parameter(torch.tensor(1.5))

    def odd(self, h: Tensor) -> Tensor:
        return h * self.scale + self.none.sum()


@stranger("a filter in the spectrum")
class Spectral(Body):
    def start(self) -> None:
        self.gain = nn.Parameter(torch.ones(9, 2))

    def odd(self, h: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(h) * torch.view_as_complex(self.gain), n=16)


@stranger("an embedding with sparse gradients", batch=words)
class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(16, 16, sparse=True, padding_idx=0), nn.Linear(16, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids).mean(1))


@stranger("an embedding of bounded norm", batch=words)
class Bounded(Sparse):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 16, max_norm=1.0)


@stranger("a bag of words", batch=words)
class Bag(Sparse):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(16, 16, mode="mean")

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids))


@stranger("a module in half precision")
class Half(Body):
    def start(self) -> None:
        self.middle = nn.Linear(16, 16).to(torch.bfloat16)

    def odd(self, h: Tensor) -> Tensor:
        return self.middle(h.to(torch.bfloat16)).float()


@stranger("autocast inside")
class Autocast(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.first(x).relu()
        return self.last(h.float())


@stranger(
    "a module in double precision",
    batch=lambda n: (torch.randn(n, WIDTH).double(), torch.randn(n, WIDTH).double()),
)
def double() -> nn.Module:
    return Body().double()


# Modes


@stranger("a part in evaluation mode", batch=pictures)
class PartEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)).eval()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x).relu().mean((2, 3)))


@stranger("frozen BatchNorm by an own train()", batch=pictures)
class FrozenNorm(PartEval):
    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.trunk.eval()
        return self


@stranger("a part put into evaluation mode in forward", batch=pictures)
class EvalInForward(PartEval):
    def __init__(self) -> None:
        super().__init__()
        self.trunk.train()

    def forward(self, x: Tensor) -> Tensor:
        self.trunk.eval()
        return super().forward(x)


@stranger("BatchNorm, momentum of its own", batch=pictures)
class Momentum(PartEval):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None))


@stranger(
    "outputs that only training has",
    loss=lambda made, t: mse(made[0], t) + mse(made[1], t) if isinstance(made, tuple) else mse(made, t),
)
class Auxiliary(Body):
    def start(self) -> None:
        self.side = nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Any:
        h = self.first(x).relu()
        return (self.last(h), self.side(h)) if self.training else self.last(h)


# Machinery


def sequences(n: int) -> tuple[object, object]:
    return (torch.randn(n, 5, WIDTH), torch.randint(1, 6, (n,))), torch.randn(n, WIDTH)


@stranger("a GRU over packed sequences", batch=sequences)
class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.last = nn.GRU(WIDTH, 16, batch_first=True), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.last(h[-1])


@stranger("an LSTM that keeps its state", batch=lambda n: (torch.randn(n, 5, WIDTH), torch.randn(n, WIDTH)))
class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(WIDTH, 16, batch_first=True), nn.Linear(16, WIDTH)
        self.state: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.lstm(x, self.state)
        self.state = (state[0].detach(), state[1].detach())
        return self.last(y[:, -1])


@stranger("vmap inside")
class Mapped(Body):
    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = torch.func.vmap(lambda row: torch.outer(row, row).sum(0) / 16)(h)
        return made


@stranger("an ensemble by functional_call and vmap")
class Ensemble(Body):
    def start(self) -> None:
        members = [nn.Linear(16, 16) for _ in range(3)]
        stacked, _ = torch.func.stack_module_state(members)
        self.weights = nn.ParameterDict({name: nn.Parameter(p.detach()) for name, p in stacked.items()})
        self.base = [copy.deepcopy(members[0]).to("meta")]

    def odd(self, h: Tensor) -> Tensor:
        one = lambda weights, x: torch.func.functional_call(self.base[0], weights, (x,))  # noqa: E731
        made: Tensor = torch.func.vmap(one, in_dims=(0, None))(dict(self.weights), h)
        return made.mean(0)


@stranger("a compiled part")
class Compiled(Body):
    def start(self) -> None:
        self.middle = torch.compile(nn.Sequential(nn.Linear(16, 16), nn.ReLU()), backend="eager")

    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = self.middle(h)
        return made


@stranger("a compiled model")
def compiled() -> nn.Module:
    return torch.compile(Body(), backend="eager")  # type: ignore[return-value]


@stranger("fake quantisation")
class Quantised(Body):
    def start(self) -> None:
        from torch.ao.quantization import DeQuantStub, QuantStub

        self.into, self.out = QuantStub(), DeQuantStub()
        self.register_buffer("scale", torch.tensor(0.1))

    def odd(self, h: Tensor) -> Tensor:
        h = torch.fake_quantize_per_tensor_affine(
            self.into(h), self.scale, torch.zeros((), dtype=torch.int), -8, 7
        )
        made: Tensor = self.out(h)
        return made


@stranger("training for quantisation")
class QuantisedTraining(Body):
    def start(self) -> None:
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

        self.fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = self.fake(h)
        return made


@stranger("a scripted part")
class Scripted(Body):
    def start(self) -> None:
        self.middle = torch.jit.script(nn.Linear(16, 16))

    def odd(self, h: Tensor) -> Tensor:
        made: Tensor = self.middle(h)
        return made


@stranger("layers in a plain list")
class PlainList(Body):
    def start(self) -> None:
        self.hidden = [nn.Linear(16, 16)]

    def odd(self, h: Tensor) -> Tensor:
        return self.hidden[0](h)


@stranger("a module made in forward")
class MadeInForward(Body):
    def odd(self, h: Tensor) -> Tensor:
        return nn.LayerNorm(16)(h)


@stranger(
    "attention with a causal mask made in forward",
    batch=lambda n: (torch.randn(n, 5, WIDTH), torch.randn(n, 5, WIDTH)),
)
class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.triu(torch.full((t, t), -math.inf), diagonal=1)
        return self.norm(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


def graphs(n: int) -> tuple[object, object]:
    return (torch.randn(n, 5, WIDTH), torch.randint(0, 5, (n, 2, 7))), torch.randn(n, WIDTH)


@stranger("messages along edges of graphs", batch=graphs)
class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.first(x).relu()
        source, target = (
            edges[:, 0].unsqueeze(2).expand(-1, -1, 16),
            edges[:, 1].unsqueeze(2).expand(-1, -1, 16),
        )
        h = h + torch.zeros_like(h).scatter_add(1, target, h.gather(1, source))
        return self.last(h.mean(1))


@stranger("an implicit layer of fixed points")
class Implicit(Body):
    def start(self) -> None:
        self.cell = nn.Linear(16, 16)

    def odd(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            z = torch.zeros_like(h)
            for _ in range(6):
                z = torch.tanh(0.3 * self.cell(z) + h)
        return torch.tanh(0.3 * self.cell(z) + h)


@stranger("a loop until it has converged")
class Converging(Implicit):
    def odd(self, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        while True:
            new = torch.tanh(0.1 * self.cell(z) + h)
            if (new - z).abs().max() < 1e-3:
                return new
            z = new


@stranger("a linear system that is solved")
class Solved(Body):
    def odd(self, h: Tensor) -> Tensor:
        matrix = torch.eye(16) + 0.01 * h.t().mean(1, keepdim=True) @ h.mean(0, keepdim=True)
        return torch.linalg.solve(matrix, h.t()).t()
