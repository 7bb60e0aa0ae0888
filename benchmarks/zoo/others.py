"""Models of monai, diffusers and peft from small settings."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.zoo.parts import Batch, Case, Make, squares
from tests.planner.library_models import llama, words

# Networks of monai: settings, and the sizes of a sample.
SLICE, SLICES, VOLUME = (1, 32, 32), (1, 64, 64), (1, 16, 16, 16)
IO = {"in_channels": 1, "out_channels": 2}
FLAT = {"spatial_dims": 2, **IO}
MONAI: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "UNet": ({**FLAT, "channels": (4, 8, 16), "strides": (2, 2), "num_res_units": 2, "dropout": 0.1}, SLICE),
    "AttentionUnet": ({**FLAT, "channels": (4, 8, 16), "strides": (2, 2)}, SLICE),
    "BasicUNet": ({**FLAT, "features": (4, 4, 8, 8, 16, 4)}, SLICE),
    "BasicUNetPlusPlus": ({**FLAT, "features": (4, 4, 8, 8, 16, 4), "deep_supervision": True}, SLICE),
    "DynUNet": (
        {
            **FLAT,
            "kernel_size": [3, 3, 3, 3],
            "strides": [1, 2, 2, 2],
            "upsample_kernel_size": [2, 2, 2],
            "filters": [4, 8, 16, 16],
            "deep_supervision": True,
            "deep_supr_num": 2,
        },
        SLICES,
    ),
    "SegResNet": ({**FLAT, "init_filters": 8, "blocks_down": (1, 1, 2), "blocks_up": (1, 1)}, SLICE),
    "SegResNetDS": ({**FLAT, "init_filters": 8, "blocks_down": (1, 1, 2), "dsdepth": 2}, SLICE),
    "SegResNetVAE": (
        {
            "input_image_size": (32, 32),
            **FLAT,
            "init_filters": 8,
            "blocks_down": (1, 1, 2),
            "blocks_up": (1, 1),
        },
        SLICE,
    ),
    "VNet": ({**FLAT}, SLICE),
    "UNETR": (
        {**FLAT, "img_size": 32, "feature_size": 4, "hidden_size": 32, "mlp_dim": 64, "num_heads": 4},
        SLICE,
    ),
    "SwinUNETR": ({**FLAT, "feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}, SLICES),
    "HighResNet": ({**FLAT, "dropout_prob": 0.1}, SLICE),
    "RegUNet": ({**FLAT, "num_channel_initial": 4, "depth": 2}, SLICE),
    "AutoEncoder": ({**FLAT, "channels": (4, 8), "strides": (2, 2)}, SLICE),
    "VarAutoEncoder": (
        {
            "spatial_dims": 2,
            "in_shape": (1, 32, 32),
            "out_channels": 1,
            "latent_size": 4,
            "channels": (4, 8),
            "strides": (2, 2),
        },
        SLICE,
    ),
    "DenseNet121": ({**FLAT, "init_features": 8, "growth_rate": 4, "block_config": (1, 2, 2, 1)}, SLICE),
    "EfficientNetBN": (
        {
            "model_name": "efficientnet-b0",
            "pretrained": False,
            "spatial_dims": 2,
            "in_channels": 1,
            "num_classes": 2,
        },
        SLICE,
    ),
    "ResNet": (
        {
            "block": "basic",
            "layers": (1, 1, 1, 1),
            "block_inplanes": (4, 8, 8, 16),
            "spatial_dims": 2,
            "n_input_channels": 1,
            "num_classes": 2,
        },
        SLICE,
    ),
    "SEResNet50": ({"spatial_dims": 2, "in_channels": 1, "num_classes": 2, "layers": (1, 1, 1, 1)}, SLICES),
    "ViT": (
        {
            "in_channels": 1,
            "img_size": 32,
            "patch_size": 8,
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_layers": 2,
            "num_heads": 4,
            "classification": True,
            "spatial_dims": 2,
        },
        SLICE,
    ),
    "ViTAutoEnc": (
        {
            "in_channels": 1,
            "img_size": 32,
            "patch_size": 8,
            "hidden_size": 32,
            "mlp_dim": 64,
            "num_layers": 2,
            "num_heads": 4,
            "spatial_dims": 2,
        },
        SLICE,
    ),
    "MedNeXt": (
        {
            **FLAT,
            "init_filters": 4,
            "encoder_blocks": (1, 1),
            "bottleneck_blocks": 1,
            "decoder_blocks": (1, 1),
            "encoder_expansion_ratio": (2, 2),
            "decoder_expansion_ratio": (2, 2),
        },
        SLICE,
    ),
    "Quicknat": ({"num_classes": 2, "num_channels": 1, "num_filters": 8}, SLICE),
    "Discriminator": ({"in_shape": (1, 32, 32), "channels": (4, 8), "strides": (2, 2)}, SLICE),
    "GlobalNet": (
        {"image_size": [32, 32], "spatial_dims": 2, "in_channels": 1, "num_channel_initial": 4, "depth": 2},
        SLICE,
    ),
    "AutoencoderKL": (
        {
            **FLAT,
            "channels": (8, 8),
            "num_res_blocks": 1,
            "norm_num_groups": 4,
            "attention_levels": (False, True),
            "latent_channels": 2,
        },
        SLICE,
    ),
    "VQVAE": (
        {
            **FLAT,
            "channels": (8, 8),
            "num_res_channels": (8, 8),
            "num_res_layers": 1,
            "downsample_parameters": ((2, 4, 1, 1),) * 2,
            "upsample_parameters": ((2, 4, 1, 1, 0),) * 2,
            "num_embeddings": 8,
            "embedding_dim": 4,
        },
        SLICE,
    ),
    "PatchDiscriminator": ({"spatial_dims": 2, "channels": 4, "in_channels": 1, "num_layers_d": 2}, SLICE),
}


def monai() -> dict[str, Make]:
    return {name: partial(_monai, name) for name in MONAI}


def _monai(name: str) -> Case:
    from monai.networks import nets

    settings, shape = MONAI[name]
    return getattr(nets, name)(**settings), lambda n: (torch.randn(n, *shape), torch.zeros(n)), squares


def _noise(*shape: int, text: tuple[int, int] = (0, 0), **more: object) -> Batch:
    """Returns batches of a denoiser: samples, times, and words where it takes some."""

    def batch(n: int) -> tuple[object, object]:
        given: dict[str, object] = {"timestep": torch.randint(0, 100, (n,))}
        if text[0]:
            given["encoder_hidden_states"] = torch.randn(n, *text)
        for name, size in more.items():
            assert isinstance(size, tuple)
            given[name] = torch.randn(n, *size)
        first = "sample" if "hidden_states" not in more else ""
        if first:
            given[first] = torch.randn(n, *shape)
        return given, torch.randn(n, *shape)

    return batch


def denoised(outputs: object, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.sample, targets)  # type: ignore[attr-defined]


UNET = {"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
CROSSED = {
    **UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
}
AUTO = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 8),
    "norm_num_groups": 4,
    "sample_size": 16,
}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8}


def _image(n: int) -> tuple[object, object]:
    return torch.randn(n, 3, 16, 16), torch.randn(n, 3, 16, 16)


def _dit(n: int) -> tuple[object, object]:
    given = {"timestep": torch.randint(0, 100, (n,)), "class_labels": torch.randint(0, 5, (n,))}
    return {"hidden_states": torch.randn(n, 4, 8, 8), **given}, torch.randn(n, 4, 8, 8)


def _sd3(n: int) -> tuple[object, object]:
    given = {
        "hidden_states": torch.randn(n, 4, 8, 8),
        "encoder_hidden_states": torch.randn(n, 5, 16),
        "pooled_projections": torch.randn(n, 16),
        "timestep": torch.randint(0, 100, (n,)),
    }
    return given, torch.randn(n, 4, 8, 8)


DIFFUSERS: dict[str, tuple[dict[str, object], Batch]] = {
    "UNet2DModel": (
        {
            **UNET,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 4,
        },
        _noise(3, 16, 16),
    ),
    "UNet2DConditionModel": ({**CROSSED}, _noise(4, 16, 16, text=(5, 8))),
    "UNet1DModel": (
        {
            "block_out_channels": (8, 8, 16),
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "extra_in_channels": 4,
        },
        _noise(4, 16),
    ),
    "UNet3DConditionModel": (
        {
            **UNET,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": 8,
            "attention_head_dim": 4,
        },
        _noise(4, 2, 16, 16, text=(5, 8)),
    ),
    "AutoencoderKL": ({**AUTO}, _image),
    "AutoencoderTiny": (
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
        _image,
    ),
    "VQModel": ({**AUTO, "num_vq_embeddings": 16}, _image),
    "DiTTransformer2DModel": (
        {**HEADS, "in_channels": 4, "out_channels": 4, "norm_num_groups": 4, "num_embeds_ada_norm": 100},
        _dit,
    ),
    "SD3Transformer2DModel": (
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 16,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 8,
        },
        _sd3,
    ),
}


def diffusers() -> dict[str, Make]:
    return {name: partial(_diffusers, name) for name in DIFFUSERS}


def _diffusers(name: str) -> Case:
    import diffusers

    settings, batch = DIFFUSERS[name]
    return getattr(diffusers, name)(**settings), batch, denoised


LAYERS = ["q_proj", "v_proj"]


def _tuners() -> dict[str, object]:
    import peft

    low = {"target_modules": LAYERS, "task_type": "CAUSAL_LM"}
    words_ = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
    return {
        "LoRA": peft.LoraConfig(r=4, lora_dropout=0.1, **low),
        "LoRA and head": peft.LoraConfig(r=4, modules_to_save=["lm_head"], **low),
        "DoRA": peft.LoraConfig(r=4, use_dora=True, **low),
        "rsLoRA": peft.LoraConfig(r=4, use_rslora=True, **low),
        "IA3": peft.IA3Config(feedforward_modules=[], **low),
        "LoHa": peft.LoHaConfig(r=4, **low),
        "LoKr": peft.LoKrConfig(r=4, **low),
        "AdaLoRA": peft.AdaLoraConfig(init_r=4, target_r=2, total_step=100, **low),
        "OFT": peft.OFTConfig(r=0, oft_block_size=4, **low),
        "BOFT": peft.BOFTConfig(boft_block_size=4, **low),
        "VeRA": peft.VeraConfig(r=4, **low),
        "HRA": peft.HRAConfig(r=4, **low),
        "Prompt tuning": peft.PromptTuningConfig(**words_),
        "Prefix tuning": peft.PrefixTuningConfig(**words_),
        "P-tuning": peft.PromptEncoderConfig(encoder_hidden_size=16, **words_),
    }


def peft() -> dict[str, Make]:
    return {name: partial(_peft, name) for name in _tuners()}


def _peft(name: str) -> Case:
    import peft

    module, _batch, _loss = llama()
    return peft.get_peft_model(module, _tuners()[name]), _labelled, _own


def _labelled(n: int) -> tuple[object, object]:
    ids = words(n)
    return {"input_ids": ids, "labels": ids.clone()}, torch.zeros(n)


def _own(outputs: object, targets: Tensor) -> Tensor:
    return outputs.loss  # type: ignore[attr-defined, no-any-return]
