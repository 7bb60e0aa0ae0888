"""GPT-2 with the widths and the tied embedding of its small size, two of its twelve blocks and an eighth of its words.

The whole one trains over four nodes in `benchmarks.launch`.
"""

from __future__ import annotations

from torch import Tensor, nn

from models import gpt2

SHAPE = gpt2.SIZES["small"]._replace(layers=2, vocab=6_283)


def build() -> nn.Module:
    return gpt2.GPT2(SHAPE, 0.0)


def batch(n: int) -> tuple[Tensor, Tensor]:
    tokens, then = gpt2.batch(n, seq=8)
    return tokens % SHAPE.vocab, then % SHAPE.vocab


loss = gpt2.loss
optimizer = gpt2.optimizer
