"""Whisper, as `transformers` has it, as a workload: an encoder of sounds whose last Value every decoder layer reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 51865
SOUND = (80, 3000)  # mel bins, frames of half a minute
LENGTH = 448  # words at most


def build() -> nn.Module:
    """The small one: 12 layers on each side, 242 million parameters."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {
        f"{side}_{name}": 12 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    wide = {"encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "d_model": 768}
    return WhisperForConditionalGeneration(WhisperConfig(vocab_size=WORDS, **sides, **wide))


def batch(n: int) -> tuple[dict[str, Tensor], Tensor]:
    words = torch.randint(WORDS, (n, LENGTH))
    return {"input_features": torch.randn(n, *SOUND), "decoder_input_ids": words}, words


def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())
