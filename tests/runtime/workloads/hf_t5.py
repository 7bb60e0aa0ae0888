"""An encoder and decoder of transformers that nobody here wrote; all of it reads one embedding."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LENGTH = 61, 8


def build() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def batch(n: int) -> tuple[dict[str, Tensor], Tensor]:
    tokens = torch.randint(VOCABULARY, (n, LENGTH + 1))
    read = torch.randint(VOCABULARY, (n, LENGTH))
    return {"input_ids": read, "decoder_input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.01, momentum=0.9)
