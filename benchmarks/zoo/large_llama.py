"""Llama of 8 billion parameters as its sizes were published, for plans from a roofline: nothing is ever allocated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, LENGTH, WIDTH = 128_256, 2048, 4096


def build(blocks: int = 32) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=14_336,
        num_hidden_layers=blocks,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def batch(n: int) -> tuple[dict[str, Tensor], Tensor]:
    tokens = torch.randint(VOCABULARY, (n, LENGTH + 1))
    return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())


def optimizer(named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for _, p in named_parameters], lr=1e-4)
