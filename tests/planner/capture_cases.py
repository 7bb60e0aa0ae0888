"""Small models, each with something in it that a tracer or a cutter can get wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = Callable[[int], tuple[object, object]]
Case = tuple[nn.Module, Batch, Callable[..., object]]


def vectors(*shape: int) -> Batch:
    return lambda n: (torch.randn(n, *shape), torch.randn(n, 3))


def tokens(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (n, 5)), torch.randint(0, 11, (n, 5))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.flatten(1)[:, :3], targets)


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        y, (h, _) = self.lstm(self.token(x))
        y, _ = self.gru(y, h.repeat(1, 1, 1))
        return self.head(y)


class KeywordsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(2, 6), nn.Linear(6, 3)

    def forward(
        self, *, left: Tensor, pair: tuple[Tensor, dict[str, Tensor]], unused: Tensor
    ) -> dict[str, object]:
        x = self.a(left) + self.b(pair[0])
        return {"y": self.c(x) * pair[1]["scale"], "parts": [x, (left,)]}


def keyword_batch(n: int) -> tuple[object, object]:
    pair = (torch.randn(n, 2), {"scale": torch.rand(n, 1)})
    return {"left": torch.randn(n, 4), "pair": pair, "unused": torch.randn(n)}, {"y": torch.randn(n, 3)}


def keyword_loss(outputs: dict[str, object], targets: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(outputs["y"], targets["y"]) + 0.1 * outputs["parts"][1][0].mean()  # type: ignore


class VisitedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.between = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.inner(x)))
        x = self.between(x) + x
        x = F.relu(self.norm(self.inner(x)))
        return self.last(self.inner(x))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(2, 4, 3, padding=1)
        self.average = nn.BatchNorm1d(4, momentum=None)
        self.conv2 = nn.Conv1d(4, 4, 3, padding=1)
        self.plain = nn.BatchNorm1d(4, affine=False)
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.group = nn.GroupNorm(2, 4)
        self.frozen = nn.BatchNorm1d(4)
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.average(self.conv1(x)).relu_()
        x = self.plain(self.conv2(x))
        x = self.frozen(self.group(self.instance(x)))
        return self.head(x.flatten(1))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu, self.elu, self.head = nn.ReLU(inplace=True), nn.ELU(inplace=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        kept = y * 2
        y += x
        y = self.relu(y.sub_(0.5).mul_(x))
        half, rest = kept[:, :2], kept[:, 2:]
        half.mul_(3)
        z = self.b(kept)
        z[:, 0] = y[:, 1] * 2
        z[:, 1:3] += rest
        seen = z.view(-1)
        w = self.c(z * 1)
        seen.add_(w.reshape(-1))
        out = x.new_zeros(x.shape[0], 4, 4)
        for i, part in enumerate((y, z, w, kept)):
            out[:, i] = part
        F.dropout(out, 0.3, inplace=True)
        return self.head(self.elu(out.flatten(1)))


class Views(nn.Module):
    """Values that are views, one tensor that is output twice, an output that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).split(4, dim=-1)
        y = self.mix(q).t().unsqueeze(0)
        z = torch.einsum("bij,ij->ji", y, (k + v.expand(k.shape)).t())
        out = self.head(z.contiguous())
        return out, out, x, v[..., :2]


def views_loss(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    out, again, x, part = outputs
    return F.mse_loss(out + again, targets) + x.mean() * part.mean()


class Parameters(nn.Module):
    """Parameters used by their parents, tied, frozen, unused, made of others."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 6, 8))
        self.token = nn.Embedding(11, 8)
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.heads = nn.ModuleDict({"only": nn.Linear(8, 11, bias=False)})
        self.heads["only"].weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), self.token(x)], dim=1) + self.place
        y = self.second(F.gelu(self.first(y))) + y
        y = self.frozen(y) * self.scale
        return self.heads["only"](y[:, 1:])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.queries = nn.Parameter(torch.randn(5, 8))
        self.cross = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.encoder(self.token(x), mask=mask, is_causal=True)
        queries = self.queries.unsqueeze(0).expand(x.shape[0], -1, -1)
        return self.head(self.cross(queries, y, y)[0])


class Modes(nn.Module):
    """Regions without gradients or under autocast, constants, tensors that are no buffers, noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.table = torch.arange(4.0)
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            mean = self.a(x).mean(0)
        x = self.a(x) - mean + torch.randn_like(x) * 0.1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(x)
        y = y.float() * self.table + self.shift * torch.tensor([1.0, 2.0, 3.0, 4.0]) + x.detach()
        return self.c(y + torch.rand(x.shape[0], 1))


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.a(x)) * self.filter
        y = torch.fft.irfft(spectrum, n=8) + x
        window = torch.ones(4)
        frames = torch.stft(y, 4, 2, window=window, return_complex=True)
        return self.b(torch.istft(frames, 4, 2, window=window, length=8))


class Plain(nn.Module):
    """No parameters at all."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.AvgPool1d(2), nn.Tanh(), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class OwnLoss(nn.Module):
    """Gives its loss itself, and reads its targets as an input."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Embedding(11, 8, sparse=False), nn.Linear(8, 11)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.token(x).cumsum(1))
        assert labels is not None
        return {"loss": next_token(logits, labels), "logits": logits}


class Masked(nn.Module):
    """A mean over unmasked tokens, as (sum, count)."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.hidden, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.token(x)).masked_fill((x == 0)[..., None], 0.0))


def masked_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
    return total, (targets != 0).sum()


class Frames(nn.Module):
    """The batch and another dim are one where the data comes in: a size that is a multiple of n."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(12, 3)

    def forward(self, x: Tensor, frames: int) -> Tensor:
        y = self.a(x).unflatten(0, (-1, frames))
        return self.b(y.flatten(1) + torch.arange(y.shape[0]).unsqueeze(1))


class TwoTowers(nn.Module):
    """Dropout in both branches, whose numbers must be drawn in the order of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.a1, self.a2 = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b1, self.b2 = nn.Linear(4, 4), nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.a1(x / 2), self.b1(y)
        b = self.drop(b)
        a = self.drop(a)
        return self.b2(self.a2(a) + F.dropout(b, 0.1, self.training))


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames, self.words = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.frames(x)[0])


def spoken(n: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return torch.randn(n, 7, 4), (torch.randint(1, 5, (n, 3)), torch.randint(1, 4, (n,)))


def speech_loss(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    words, lengths = targets
    steps = torch.full((outputs.shape[0],), outputs.shape[1])
    return F.ctc_loss(F.log_softmax(outputs, -1).transpose(0, 1), words, steps, lengths)


def variance_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Reads values: it raises where a variance is below zero."""
    return F.gaussian_nll_loss(
        outputs[..., :2], targets, outputs[..., 2:4].exp()
    ) + 0.1 * nn.GaussianNLLLoss()(outputs[..., :2], targets, outputs[..., 4:].exp())


CASES: dict[str, Callable[[], Case]] = {
    "recurrent": lambda: (Recurrent(), tokens, next_token),
    "keywords_only": lambda: (KeywordsOnly(), keyword_batch, keyword_loss),
    "visited_twice": lambda: (VisitedTwice(), vectors(4), mse),
    "norms": lambda: (Norms(), vectors(2, 6), mse),
    "in_place": lambda: (InPlace(), vectors(4), mse),
    "views": lambda: (Views(), vectors(4), views_loss),
    "parameters": lambda: (Parameters(), tokens, next_token),
    "attention": lambda: (Attention(), tokens, next_token),
    "modes": lambda: (Modes(), vectors(4), mse),
    "spectrum": lambda: (Spectrum(), vectors(8), mse),
    "plain": lambda: (Plain(), vectors(2, 4), mse),
    "single": lambda: (nn.Linear(4, 3), vectors(4), mse),
    "own_loss": lambda: (OwnLoss(), lambda n: (tokens(n), None), lambda outputs, targets: outputs["loss"]),
    "masked": lambda: (Masked(), tokens, masked_loss),
    "frames": lambda: (Frames(), lambda n: ((torch.randn(3 * n, 4), 3), torch.randn(n, 3)), mse),
    "two_towers": lambda: (
        TwoTowers(),
        lambda n: ((torch.randn(n, 4), torch.randn(n, 4)), torch.randn(n, 3)),
        mse,
    ),
    "ctc": lambda: (Speech(), spoken, speech_loss),
    "variances": lambda: (Speech(), lambda n: (torch.randn(n, 7, 4), torch.randn(n, 7, 2)), variance_loss),
    "loss_module": lambda: (
        nn.Linear(4, 3),
        lambda n: (torch.randn(n, 4), torch.randint(0, 3, (n,))),
        nn.CrossEntropyLoss(torch.rand(3)),
    ),
}
