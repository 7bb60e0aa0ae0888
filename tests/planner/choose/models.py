"""Small models as a group works on them: operations of a capture, with times by their arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

from models import gpt2 as gpt2_model
from planner.capture import Captured, capture
from planner.choose import GroupWork
from planner.group import amount
from planner.layout import operations_at
from tests.planner.library_models import Case, next_word, words

FLOP_PER_S = 1e14


def work_of_case(case: Case, micro: int = 4) -> GroupWork:
    captured = _captured(case, micro)
    operations = operations_at(captured.graph, micro)
    shapes = {x.name: x.outputs[0] for x in operations if x.outputs}
    ns = {x.name: amount(x, shapes, 4) / FLOP_PER_S * 3e9 for x in operations if x.layer}
    handed = {x.name for x in captured.graph.values if x.role == "hidden" and not x.consumers}
    return GroupWork(
        operations=operations,
        trained=frozenset(f"state:{x.name}" for x in captured.graph.trained),
        resolved=frozenset(handed),
        ns=ns,
        state_bytes=16.0,
        gradient_bytes=4,
        element_bytes=4,
    )


def _captured(case: Case, micro: int) -> Captured:
    torch.manual_seed(0)
    module, batch, loss = case
    return capture(module, batch, loss, micro=micro)


@cache
def gpt2(blocks: int = 2, width: int = 256, tokens: int = 32, vocab: int = 512) -> GroupWork:
    shape = gpt2_model.Shape(layers=blocks, width=width, heads=8, positions=tokens, vocab=vocab)

    def batch(n: int) -> tuple[object, object]:
        return torch.randint(9, (n, tokens)), torch.randint(9, (n, tokens))

    return work_of_case((gpt2_model.GPT2(shape, 0.0), batch, gpt2_model.loss))


@cache
def llama(blocks: int = 2, vocab: int = 512) -> GroupWork:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=256,
        num_hidden_layers=blocks,
        num_attention_heads=8,
        intermediate_size=512,
        num_key_value_heads=8,
        max_position_embeddings=32,
        use_cache=False,
    )

    def batch(n: int) -> tuple[object, object]:
        return {"input_ids": torch.randint(9, (n, 32))}, torch.randint(9, (n, 32))

    return work_of_case((LlamaForCausalLM(config), batch, next_word))


@cache
def mlp() -> GroupWork:
    """One layer of a few features."""
    return work_of_case(
        (nn.Linear(12, 6), lambda n: (torch.randn(n, 12), torch.randn(n, 6)), nn.functional.mse_loss)
    )


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.scale)


@cache
def without_matmul() -> GroupWork:
    return work_of_case(
        (_Scaled(), lambda n: (torch.randn(n, 10), torch.randn(n, 10)), nn.functional.mse_loss)
    )


def on_device(work: GroupWork, **changed: object) -> GroupWork:
    return replace(work, **changed)  # type: ignore[arg-type]


__all__ = ["gpt2", "llama", "mlp", "on_device", "without_matmul", "words"]
