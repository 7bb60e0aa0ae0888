"""A small network with everything that pipelines find hard: long and short skips, a tied weight, an integer Value
that crosses stages, a dictionary on the way, a transposed tensor between layers, a frozen layer, an unused one, a buffer that nothing reads."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH = 23, 12, 6


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        x = state["x"]
        return {**state, "x": x + self.down(torch.relu(self.up(self.norm(x))))}


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(5))
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("unread", torch.arange(3.0))
        self.register_buffer("unsaved", torch.arange(2.0), persistent=False)
        self.gate = nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.embedding(tokens)
        choice = self.gate(first).squeeze(-1).argsort(-1)  # integers that a later stage reads
        state = {"x": first, "first": first}
        for layer in self.layers[:2]:
            state = layer(state)
        middle = state["x"]
        state = {**state, "x": self.mix(middle.transpose(1, 2)).transpose(1, 2)}
        for layer in self.layers[2:]:
            state = layer(state)
        x = self.frozen(state["x"]) + 0.5 * middle + state["first"]
        x = x.gather(1, choice.unsqueeze(-1).expand_as(x)) + first
        logits: Tensor = self.head(x)
        return logits


def build(double: bool = False) -> nn.Module:
    return Branches().double() if double else Branches()


def batch(n: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(VOCABULARY, (n, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(logits: Tensor, targets: Tensor, counted: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    if not counted:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    seen = targets.flatten() > 3
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * seen).sum(), seen.sum()


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], lr: float = 0.05
) -> torch.optim.Optimizer:
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in named_parameters:
        groups["norm" in name].append(parameter)
    return torch.optim.SGD(
        [{"params": groups[False], "weight_decay": 0.01}, {"params": groups[True]}], lr=lr, momentum=0.9
    )
