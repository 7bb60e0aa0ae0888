"""GPT-2 with the widths, vocabulary and tied embedding of its small size, and two of its twelve blocks.

The whole one trains over four nodes in `benchmarks.launch`.
"""

from __future__ import annotations

from torch import Tensor, nn

from models import gpt2

SHAPE = gpt2.SIZES["small"]._replace(layers=2)


def build() -> nn.Module:
    return gpt2.GPT2(SHAPE, 0.0)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return gpt2.batch(n, seq=8)


loss = gpt2.loss
optimizer = gpt2.optimizer
