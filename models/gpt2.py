"""GPT-2 (Radford et al., 2019) and larger decoders of its kind: next-token prediction."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    positions: int = 1024
    vocab: int = 50257
    tied: bool = True


SIZES = {
    "tiny": Shape(layers=4, width=64, heads=4, positions=128, vocab=256),
    "small": Shape(layers=12, width=768, heads=12),
    "91m": Shape(layers=12, width=768, heads=12, positions=256, vocab=8192),
    "medium": Shape(layers=24, width=1024, heads=16),
    "large": Shape(layers=36, width=1280, heads=20),
    "xl": Shape(layers=48, width=1600, heads=25),
    # The GPT-2 of Chimera (Li and Hoefler, 2021): 1,389,327,360 parameters, the head on its own.
    "chimera": Shape(layers=64, width=1280, heads=20, tied=False),
    # GPT-3 (Brown et al., 2020) of 2.7 billion parameters.
    "2.7b": Shape(layers=32, width=2560, heads=32, positions=2048),
    # GPT-3 (Brown et al., 2020), with dense attention in every layer.
    "175b": Shape(layers=96, width=12288, heads=96, positions=2048),
}


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.out(x.transpose(1, 2).flatten(2))
        return x


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(F.gelu(self.up(x), approximate="tanh"))
        return x


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feedforward = FeedForward(width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.dropout(self.feedforward(self.norm2(x)))
        return x


class GPT2(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab, shape.width)
        self.position = nn.Embedding(shape.positions, shape.width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.Sequential(
            *(Block(shape.width, shape.heads, dropout) for _ in range(shape.layers)),
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def build(size: str = "small", dropout: float = 0.0) -> nn.Module:
    """Returns the model with initial weights.

    Args: `size` is a name in SIZES; `dropout` is a probability, 0 for none.
    """
    shape = _shape(size)
    model = GPT2(shape, dropout)
    _initialise(model, shape.layers)
    return model


def batch(n: int, size: str = "small", seq: int = 128) -> tuple[Tensor, Tensor]:
    """Returns random tokens and the tokens that follow them.

    Args: `n` is the number of samples; `seq` is the number of tokens of each.
    Raises: ValueError where the size has too few positions.
    """
    shape = _shape(size)
    if not 0 < seq <= shape.positions:
        raise ValueError(f"seq={seq}: size {size!r} has positions for 1 to {shape.positions} tokens")
    tokens = torch.randint(shape.vocab, (n, seq + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 6e-4, weight_decay: float = 0.1
) -> torch.optim.Optimizer:
    """Returns AdamW. Biases and the scales of norms do not decay.

    Args: `named_parameters` are those of a rank.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in named_parameters:
        (free if name.endswith("bias") or "norm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def _shape(size: str) -> Shape:
    if size not in SIZES:
        raise ValueError(f"size={size!r}: choose one of {', '.join(SIZES)}")
    return SIZES[size]


def _initialise(model: nn.Module, layers: int) -> None:
    """Draws initial weights. Those that write to the residual stream are smaller, so that its variance stays
    with depth.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
        elif parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
