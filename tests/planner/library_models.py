"""Models that nobody here wrote, with random weights from small settings."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[nn.Module, Callable[[int], tuple[object, object]], Callable[..., object]]
TEXT = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def words(n: int) -> Tensor:
    return torch.randint(2, 64, (n, 8))


def pictures(n: int, side: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, side, side), torch.randint(0, 5, (n,))


def next_word(outputs: object, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())  # type: ignore[attr-defined]


def its_class(outputs: object, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.logits, targets)  # type: ignore[attr-defined]


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(small), lambda n: ({"input_ids": words(n)}, words(n)), next_word


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    small = BertConfig(**TEXT, intermediate_size=32, max_position_embeddings=16)

    def batch(n: int) -> tuple[object, object]:
        mask = torch.ones(n, 8, dtype=torch.long)
        mask[:, 6:] = 0
        return {"input_ids": words(n), "attention_mask": mask}, words(n)

    return BertForMaskedLM(small), batch, next_word


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(
        **{**TEXT, "num_hidden_layers": 3, "num_attention_heads": 4},
        intermediate_size=32,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(small), lambda n: ({"input_ids": words(n)}, words(n)), next_word


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    small = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return (
        T5ForConditionalGeneration(small),
        lambda n: ({"input_ids": words(n), "labels": words(n)}, None),
        lambda outputs, targets: outputs.loss,
    )


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    small = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return ViTForImageClassification(small), lambda n: pictures(n, 16), its_class


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    small = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], num_labels=5)
    return ResNetForImageClassification(small), pictures, its_class


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    small = ConvNextConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 2, 1], num_labels=5, drop_path_rate=0.1
    )
    return ConvNextForImageClassification(small), pictures, its_class


def whisper() -> Case:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
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


def volumes(module: nn.Module, side: int = 16) -> Case:
    def batch(n: int) -> tuple[object, object]:
        return torch.randn(n, 1, side, side, side), torch.rand(n, 2, side, side, side)

    return module, batch, F.mse_loss


def unet() -> Case:
    from monai.networks.nets import UNet

    return volumes(UNet(3, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=2, dropout=0.1))


def segresnet() -> Case:
    from monai.networks.nets import SegResNet

    small = {"init_filters": 8, "blocks_down": (1, 1, 2), "blocks_up": (1, 1), "dropout_prob": 0.1}
    return volumes(SegResNet(3, in_channels=1, out_channels=2, **small))


def vnet() -> Case:
    from monai.networks.nets import VNet

    return volumes(VNet(3, 1, 2))


def swinunetr() -> Case:
    from monai.networks.nets import SwinUNETR

    small = {"depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1), "feature_size": 12, "spatial_dims": 3}
    return volumes(SwinUNETR(in_channels=1, out_channels=2, **small), side=64)


LIBRARY: dict[str, Callable[[], Case]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "ViT": vit,
    "ResNet": resnet,
    "ConvNeXt": convnext,
    "Whisper": whisper,
    "UNet": unet,
    "SegResNet": segresnet,
    "VNet": vnet,
    "SwinUNETR": swinunetr,
}
