"""Small models whose parameters are odd in one way each, for replicas that share them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

WORDS, LENGTH, WIDTH = 11, 5, 6
IN_WORDS = ("padded", "tied twice", "positions")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x, x, x, need_weights=False)[0]
        y: Tensor = x + self.second(x, x, x, need_weights=False)[0]
        return y


class Scalars(nn.Module):
    """Numbers without dims, of one element, and without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(1))
        self.empty = nn.Parameter(torch.empty(0, WIDTH))
        self.inner, self.bend = nn.Linear(WIDTH, WIDTH), nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bend(self.inner(x) * self.scale) + self.shift
        return y + self.empty.sum()


class Shared(nn.Module):
    """One block in three places, with another between them."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.block, self.other, self.block, nn.Tanh(), self.block):
            x = torch.tanh(layer(x))
        return x


class Normed(nn.Module):
    """Statistics, a buffer that is read, and one that nobody reads."""

    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = nn.BatchNorm1d(LENGTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("counts", torch.arange(WIDTH, dtype=torch.float32))
        self.register_buffer("spare", torch.arange(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.line(x) + self.counts)
        return y


class HalfFrozen(nn.Module):
    """Every other layer stays as it is; low ranks are trained beside it, one of them from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.ModuleList(nn.Linear(WIDTH, WIDTH).requires_grad_(bool(k % 2)) for k in range(4))
        self.down, self.up = nn.Parameter(torch.randn(WIDTH, 1) * 0.1), nn.Parameter(torch.zeros(1, WIDTH))
        self.lines[1].bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for line in self.lines:
            x = torch.tanh(line(x) + x @ self.down @ self.up)
        return x


class Primes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = (WIDTH, 13, 7, 1, 3, WIDTH)
        self.lines = nn.ModuleList(nn.Linear(a, b, bias=b != 7) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for line in self.lines:
            x = torch.tanh(line(x))
        return x


class Mixed(nn.Module):
    """Double precision and half of it in one block."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.rough = nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, WIDTH).bfloat16()
        self.plain = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.plain(self.rough(self.fine(x.double()).bfloat16()).float())
        return y


class Made(nn.Module):
    """Weights that are made of others before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.stack = nn.Parameter(torch.randn(3, WIDTH, WIDTH) * 0.2)
        self.both = nn.Parameter(torch.randn(2 * WIDTH, WIDTH) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.normed(x))
        for weight in self.stack.unbind(0):
            x = torch.tanh(x @ weight.t())
        first, second = self.both.chunk(2)
        return F.linear(x, first) * torch.sigmoid(F.linear(x, second))


class Idle(nn.Module):
    """Parameters that no layer uses, whose gradient is cut off, and of which some rows alone have one."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(WIDTH, 3)
        self.cut = nn.Parameter(torch.ones(WIDTH))
        self.some, self.line = nn.Parameter(torch.randn(4, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.line(x) * self.cut.detach() + self.some[1])


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(LENGTH, 4, 3, padding=1, groups=1, bias=False)
        self.norm, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose1d(4, LENGTH, 3, padding=1)
        self.pair = nn.Bilinear(WIDTH, WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(F.silu(self.norm(self.down(x))))
        return x + self.pair(y, x)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0, sparse=False)
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        y: Tensor = self.norm(self.words(words))
        return y


class TiedTwice(nn.Module):
    """One table for words before and behind, and as a projection between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.line = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        x = torch.tanh(self.line(self.words(words)))
        x = F.linear(x, self.words.weight)
        return torch.tanh(x @ self.words.weight)


class Positions(nn.Module):
    """Parameters that the model itself uses, in no layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, LENGTH + 1, WIDTH) * 0.1)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 9, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, words: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(words.shape[0], 1, WIDTH), self.words(words)], 1) + self.places
        y: Tensor = self.block(x)
        return y[:, 1:]


KINDS: dict[str, type[nn.Module]] = {
    "attending": Attending,
    "scalars": Scalars,
    "shared": Shared,
    "normed": Normed,
    "half frozen": HalfFrozen,
    "primes": Primes,
    "mixed": Mixed,
    "made": Made,
    "idle": Idle,
    "convolved": Convolved,
    "padded": Padded,
    "tied twice": TiedTwice,
    "positions": Positions,
}


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.odd, self.last = KINDS[kind](), nn.Linear(LENGTH * WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.odd(x).flatten(1))
        return y


def build(kind: str = "scalars") -> nn.Module:
    torch.manual_seed(0)
    return Odd(kind)


def batch(n: int, kind: str = "scalars") -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (n, LENGTH))
    return words if kind in IN_WORDS else torch.randn(n, LENGTH, WIDTH), torch.randint(3, (n,))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.05, momentum=0.9, weight_decay=0.01)
