"""BERT (Devlin et al., 2018) in pre-training: masked words and next sentence."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MASK_TOKEN = 103
NOT_MASKED = -100


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    positions: int = 512
    vocab: int = 30522
    tied: bool = True


SIZES = {
    "tiny": Shape(layers=2, width=64, heads=4, positions=128, vocab=256),
    "base": Shape(layers=12, width=768, heads=12),
    "large": Shape(layers=24, width=1024, heads=16),
    # The Bert-48 of Chimera (Li and Hoefler, 2021): 669,790,012 parameters, the word head on its own.
    "bert48": Shape(layers=48, width=1024, heads=16, tied=False),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = F.scaled_dot_product_attention(q, k, v)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(F.gelu(self.up(x)))
        return x


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.feedforward = FeedForward(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        x = self.norm2(x + self.dropout(self.feedforward(x)))
        return x


class Embedding(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab, shape.width)
        self.position = nn.Embedding(shape.positions, shape.width)
        self.segment = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = self.token(tokens) + self.position(positions) + self.segment(segments)
        x = self.dropout(self.norm(x))
        return x


class WordHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.transform = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.decoder = nn.Linear(shape.width, shape.vocab)

    def forward(self, x: Tensor) -> Tensor:
        x = self.decoder(self.norm(F.gelu(self.transform(x))))
        return x


class Bert(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embedding = Embedding(shape, dropout)
        self.blocks = nn.Sequential(
            *(Block(shape.width, shape.heads, dropout) for _ in range(shape.layers)),
        )
        self.pooler = nn.Linear(shape.width, shape.width)
        self.words = WordHead(shape)
        self.follows = nn.Linear(shape.width, 2)
        if shape.tied:
            self.words.decoder.weight = self.embedding.token.weight

    def forward(self, tokens: Tensor, segments: Tensor) -> dict[str, Tensor]:
        x = self.blocks(self.embedding(tokens, segments))
        return {"words": self.words(x), "follows": self.follows(self.pooler(x[:, 0]).tanh())}


def build(size: str = "base", dropout: float = 0.1) -> nn.Module:
    """Returns the model with initial weights.

    Args: `size` is a name in SIZES; `dropout` is a probability, 0 for none.
    """
    model = Bert(_shape(size), dropout)
    _initialise(model)
    return model


def batch(n: int, size: str = "base", seq: int = 128) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns random samples of two sentences each. At least one word and at most 30 % of the words are
    masked.

    Args: `n` is the number of samples; `seq` is the number of tokens of each.
    Returns: inputs and targets by name; unmasked words have the target -100.
    Raises: ValueError where the size has too few positions.
    """
    shape = _shape(size)
    if not 2 <= seq <= shape.positions:
        raise ValueError(f"seq={seq}: size {size!r} has positions for 2 to {shape.positions} tokens")
    tokens = torch.randint(shape.vocab, (n, seq))
    second = torch.randint(1, seq, (n, 1))  # where the second text begins
    segments = (torch.arange(seq, device=second.device) >= second).long()
    masked_words = torch.randint(1, max(2, int(0.3 * seq)), (n, 1))
    masked = torch.rand(n, seq).argsort(1) < masked_words
    inputs = {"tokens": tokens.masked_fill(masked, MASK_TOKEN), "segments": segments}
    targets = {"words": tokens.masked_fill(~masked, NOT_MASKED), "follows": torch.randint(2, (n,))}
    return inputs, targets


def loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the summed loss of masked words and their number, both of which add up over micro-batches.

    The next-sentence error of a sample counts once for each of its masked words. Divided by the number, and
    with as many masked words in every sample, this is BERT's sum of two means.
    Args: `outputs` and `targets` are by name, as the model and `batch` give them.
    """
    words, follows = outputs["words"], outputs["follows"]
    masked = targets["words"] != NOT_MASKED
    word_errors = F.cross_entropy(
        words.flatten(0, 1), targets["words"].flatten(), ignore_index=NOT_MASKED, reduction="sum"
    )
    sentence_errors = F.cross_entropy(follows, targets["follows"], reduction="none")
    return word_errors + (masked.sum(1) * sentence_errors).sum(), masked.sum()


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-4, weight_decay: float = 0.01
) -> torch.optim.Optimizer:
    """Returns AdamW. Biases and the scales of norms do not decay.

    Args: `named_parameters` are those of a rank.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in named_parameters:
        (free if name.endswith("bias") or "norm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def _shape(size: str) -> Shape:
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    return SIZES[size]


def _initialise(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
