"""A model of transformers that nobody here wrote."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LENGTH = 61, 8


def build() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def batch(n: int) -> tuple[dict[str, Tensor], Tensor]:
    tokens = torch.randint(VOCABULARY, (n, LENGTH + 1))
    return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())


def optimizer(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named_parameters], lr=0.01, momentum=0.9)
