"""Small models with the cuts that are usual for them, and the layers that each cut names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import gpt2
from planner.layout import Wish
from tests.planner.library_models import Case, its_class, next_word, pictures, words

Cuts = Mapping[str, Mapping[str, str]]  # "heads", "vocabulary", "sequence" -> module pattern -> factor


def ours() -> Case:
    shape = gpt2.Shape(layers=2, width=16, heads=4, positions=8, vocab=32)

    def batch(n: int) -> tuple[object, object]:
        return torch.randint(32, (n, 8)), torch.randint(32, (n, 8))

    return gpt2.GPT2(shape, 0.0), batch, gpt2.loss


def library_gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(small), lambda n: ({"input_ids": words(n)}, words(n)), next_word


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    small = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=16,
    )

    def batch(n: int) -> tuple[object, object]:
        mask = torch.ones(n, 8, dtype=torch.long)
        mask[:, 6:] = 0
        return {"input_ids": words(n), "attention_mask": mask}, words(n)

    return BertForMaskedLM(small), batch, next_word


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(small), lambda n: ({"input_ids": words(n)}, words(n)), next_word


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    small = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return (
        T5ForConditionalGeneration(small),
        lambda n: ({"input_ids": words(n), "labels": words(n)}, None),
        lambda outputs, targets: outputs.loss,
    )


def albert() -> Case:
    """One layer of weights that runs twice."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    small = AlbertConfig(
        vocab_size=64,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    return AlbertForMaskedLM(small), lambda n: ({"input_ids": words(n)}, words(n)), next_word


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    small = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=6,
    )
    return ViTForImageClassification(small), lambda n: pictures(n, 16), its_class


def whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))
    }
    small = WhisperConfig(
        vocab_size=64,
        num_mel_bins=8,
        d_model=16,
        max_source_positions=16,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
        **sides,
    )
    return (
        WhisperForConditionalGeneration(small),
        lambda n: ({"input_features": torch.randn(n, 8, 32), "decoder_input_ids": words(n)}, words(n)),
        next_word,
    )


class FusedAttention(nn.Module):
    """Attention whose q, k and v come from one weight, in the order of its columns that is asked for."""

    def __init__(self, order: str, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.order, self.heads, self.size = order, heads, width // heads
        groups = 2 if order == "groups" else heads
        self.groups = groups
        columns = (heads + 2 * groups) * self.size
        self.qkv, self.out = nn.Linear(width, columns), nn.Linear(width, width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, s, _ = x.shape
        made = self.qkv(x)
        if self.order == "(3,h,d)":
            q, k, v = (
                part.view(n, s, self.heads, self.size) for part in made.split(self.heads * self.size, -1)
            )
            return q, k, v
        if self.order == "(h,3,d)":
            q, k, v = made.view(n, s, self.heads, 3, self.size).unbind(3)
            return q, k, v
        each = self.heads // self.groups
        grouped = made.view(n, s, self.groups, each + 2, self.size)
        q = grouped[:, :, :, :each].reshape(n, s, self.heads, self.size)
        return q, grouped[:, :, :, each], grouped[:, :, :, each + 1]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.parts(x))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups < self.heads)
        made: Tensor = self.out(x.transpose(1, 2).flatten(2))
        return made


class Fused(nn.Module):
    def __init__(self, order: str) -> None:
        super().__init__()
        self.attention, self.head = FusedAttention(order), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(x + self.attention(x))
        return made


def fused(order: str) -> Case:
    return Fused(order), lambda n: (torch.randn(n, 6, 16), torch.randn(n, 6, 4)), F.mse_loss


MODELS: Mapping[str, tuple[Callable[[], Case], Cuts]] = {
    "our GPT-2": (
        ours,
        {
            "heads": {"blocks.*.attention": "heads", "blocks.*.feedforward": "hidden"},
            "vocabulary": {"token": "vocabulary", "head": "out"},
            "sequence": {"blocks.*": "sequence", "norm": "sequence"},
        },
    ),
    "transformers GPT-2": (
        library_gpt2,
        {
            "heads": {"transformer.h.*.attn": "heads", "transformer.h.*.mlp": "hidden"},
            "vocabulary": {"transformer.wte": "vocabulary", "lm_head": "out"},
            "sequence": {"transformer": "sequence"},
        },
    ),
    "BERT": (
        bert,
        {
            "heads": {
                "bert.encoder.layer.*.attention": "heads",
                "bert.encoder.layer.*.intermediate": "out",
                "bert.encoder.layer.*.output": "in",
            },
            "vocabulary": {"bert.embeddings.word_embeddings": "vocabulary", "cls.predictions.decoder": "out"},
            "sequence": {"bert.embeddings": "sequence", "bert.encoder": "sequence"},
        },
    ),
    "Llama": (
        llama,
        {
            "heads": {"model.layers.*.self_attn": "heads", "model.layers.*.mlp": "hidden"},
            "vocabulary": {"model.embed_tokens": "vocabulary", "lm_head": "out"},
            "sequence": {"model": "sequence"},
        },
    ),
    "T5": (
        t5,
        {
            "heads": {
                "*.block.*.layer.*.SelfAttention": "heads",
                "*.block.*.layer.*.EncDecAttention": "heads",
                "*.block.*.layer.*.DenseReluDense": "hidden",
            },
            "vocabulary": {
                "encoder.embed_tokens": "vocabulary",
                "decoder.embed_tokens": "vocabulary",
                "lm_head": "out",
            },
            "sequence": {"encoder": "sequence", "decoder": "sequence"},
        },
    ),
    "ALBERT": (
        albert,
        {
            "heads": {
                "albert.encoder.albert_layer_groups.*.albert_layers.*.attention": "heads",
                "albert.encoder.albert_layer_groups.*.albert_layers.*.ffn": "out",
                "albert.encoder.albert_layer_groups.*.albert_layers.*.ffn_output": "in",
            },
            "vocabulary": {"albert.embeddings.word_embeddings": "vocabulary", "predictions.decoder": "out"},
            "sequence": {"albert": "sequence"},
        },
    ),
    "ViT": (
        vit,
        {
            "heads": {"vit.layers.*.attention": "heads", "vit.layers.*.mlp": "hidden"},
            "vocabulary": {"classifier": "out"},
            "sequence": {"vit": "sequence"},
        },
    ),
    "Whisper": (
        whisper,
        {
            "heads": {
                "model.*.layers.*.self_attn": "heads",
                "model.*.layers.*.encoder_attn": "heads",
                "model.*.layers.*.fc1": "out",
                "model.*.layers.*.fc2": "in",
            },
            "vocabulary": {"model.decoder.embed_tokens": "vocabulary", "proj_out": "out"},
            "sequence": {"model": "sequence"},
        },
    ),
}
CONFIGURATIONS = (
    ("heads",),
    ("heads", "sequence"),
    ("heads", "vocabulary"),
    ("heads", "vocabulary", "sequence"),
)


def without_dropout(case: Case) -> Case:
    """Returns a model with every dropout at 0, also those of attention that are numbers."""
    for module in case[0].modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "dropout_prob", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return case


def wishes(cuts: Cuts, names: tuple[str, ...], axis: int = 0) -> list[Wish]:
    """Returns the lines of a cut section for these cuts of a model."""
    return [Wish(pattern, axis, factor) for name in names for pattern, factor in cuts[name].items()]
