"""Our GPT-2 with dropout and a tied head, or a Llama of transformers, in double precision."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import gpt2
from tests.runtime.layout.cut_models import llama

WORDS, LENGTH = 32, 8


def build(model: str = "gpt2", dropout: float = 0.0) -> nn.Module:
    if model == "llama":
        return llama()[0].double()
    shape = gpt2.Shape(layers=2, width=16, heads=4, positions=LENGTH, vocab=WORDS)
    return gpt2.GPT2(shape, dropout).double()


def batch(n: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (n, LENGTH + 1))
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def loss(outputs: object, targets: Tensor) -> Tensor:
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits  # type: ignore[attr-defined]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], kind: str = "momentum"
) -> torch.optim.Optimizer:
    every = [p for _, p in named_parameters]
    if kind == "momentum":
        return torch.optim.SGD(every, lr=0.05, momentum=0.9)
    if kind == "whole":
        return torch.optim.Adafactor(every)
    groups = [{"params": [p], "lr": 0.05 if p.numel() > 600 or p.shape[0] == WORDS else 0.002} for p in every]
    return torch.optim.Adagrad(groups, initial_accumulator_value=0.1)  # has state before its first step
