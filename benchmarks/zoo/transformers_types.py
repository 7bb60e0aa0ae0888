"""Types of models of transformers, each from its own configuration with every size made small.

A head computes its own loss from `labels`, as a user of the library has it; what has no such loss is judged by its
outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.zoo.parts import Case, Make, own_loss

WORDS, LENGTH, CLASSES, SIDE = 64, 8, 5, 32

# Sizes by the names that configurations have for them.
SMALL: dict[str, object] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "entity_vocab_size"), WORDS),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "embedding_size"), 32
    ),
    **dict.fromkeys(("decoder_hidden_size", "projection_dim", "word_embed_proj_dim", "entity_emb_size"), 32),
    **dict.fromkeys(("n_inner", "intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("d_ff", "d_inner", "hidden_dim", "ffn_hidden_size", "moe_intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_key_value_heads", "num_kv_heads"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("image_size", "input_size"), SIDE),
    **dict.fromkeys(("num_labels",), CLASSES),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("use_cache",), False),
    **dict.fromkeys(("num_conv_pos_embeddings",), 16),
    **dict.fromkeys(("num_conv_pos_embedding_groups",), 2),
    "max_source_positions": 32,
    "max_target_positions": 32,
    "num_mel_bins": 8,
    "rope_scaling": None,
}
# What a type needs beside: sizes that hang together in a way of its own.
SWIN = {
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 2,
    "patch_size": 4,
    "hidden_size": 32,
}
STAGES = {"hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
BESIDE: dict[str, dict[str, object]] = {
    "swin": SWIN,
    "swinv2": SWIN,
    "donut-swin": SWIN,
    "convnext": {**STAGES, "patch_size": 4},
    "convnextv2": {**STAGES, "patch_size": 4},
    "resnet": {**STAGES, "embedding_size": 16},
    "regnet": {**STAGES, "embedding_size": 16, "groups_width": 8},
    **{name: {"rotary_dim": 4} for name in ("gptj", "codegen")},
    "levit": {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1]},
    "hiera": {
        "image_size": [64, 64],
        "embed_dim": 16,
        "num_heads": [1, 2, 4, 8],
        "depths": [1, 1, 2, 1],
        "patch_size": [7, 7],
    },
    "mobilevitv2": {"patch_size": 2},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320},
}


SOUND = {
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "classifier_proj_size": 16,
}
SEW = {**SOUND, "squeeze_factor": 2}
BESIDE |= dict.fromkeys(
    ("wav2vec2", "hubert", "unispeech", "unispeech-sat", "wavlm", "data2vec-audio"), SOUND
)
BESIDE |= {"sew": SEW, "sew-d": SEW, "wav2vec2-conformer": SOUND}
BESIDE |= {"speech_to_text": {"input_feat_per_channel": 8, "conv_channels": 16, "num_conv_layers": 2}}
ADVISED = {"layerdrop": 0.0, "apply_spec_augment": False}  # what the refusals of these models advise

# By task: the types of models that are tried. A type with `*` is tried as its refusal advises, too.
TYPES = {
    "causal": """
        apertus arcee bert bart biogpt bitnet blenderbot bloom codegen cohere cohere2 ctrl diffllama doge electra ernie4_5
        ernie4_5_moe exaone4 falcon falcon_mamba fuyu gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neo gpt_neox
        gpt_neox_japanese gpt_oss gptj granite granitemoe helium jamba jetmoe lfm2 llama llama4_text mamba mamba2
        megatron-bert minimax mistral mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 openai-gpt opt
        persimmon phi phi3 phimoe prophetnet qwen2 qwen2_moe qwen3 recurrent_gemma reformer rwkv seed_oss smollm3
        stablelm starcoder2 xglm xlm xlnet xlstm""",
    "masked": """
        albert bert big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm eurobert fnet
        funnel ibert layoutlm longformer luke mobilebert modernbert mpnet mra nystromformer rembert roberta
        roberta-prelayernorm roformer squeezebert xlm-roberta xlm-roberta-xl yoso""",
    "seq2seq": """
        bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led m2m_100 marian mbart mt5 mvp nllb-moe
        pegasus pegasus_x plbart prophetnet switch_transformers t5 t5gemma umt5""",
    "image": """
        beit clip convnext convnextv2 data2vec-vision dinov2 dinov2_with_registers donut-swin efficientnet ijepa
        metaclip_2 mobilenet_v2 mobilevit pvt regnet resnet segformer siglip swiftformer swin swinv2 vit vit_msn""",
    "ctc": "data2vec-audio hubert* sew sew-d unispeech unispeech-sat wav2vec2* wav2vec2-conformer wavlm",
    "sound": "hubert wav2vec2*",
    "speech": "whisper speech_to_text",
}


def cases() -> dict[str, Make]:
    """Returns a case for every type and task; of CTC and sounds some twice, the second as the refusals advise."""
    found: dict[str, Make] = {}
    for task, names in TYPES.items():
        for name in names.split():
            kind = name.rstrip("*")
            found[f"{kind} {task}"] = partial(_case, kind, task)
            if kind != name:
                found[f"{kind} {task}, as advised"] = partial(_case, kind, task, ADVISED)
    return found


def _case(kind: str, task: str, beside: Mapping[str, object] = MappingProxyType({})) -> Case:
    import transformers

    head, batch = TASKS[task]
    loss = ctc if beside and task == "ctc" else own_loss
    settings = small(transformers.CONFIG_MAPPING[kind], kind)
    for name, value in beside.items():
        setattr(settings, name, value)
    module = getattr(transformers, head).from_config(settings)
    return module, partial(_labelled if loss is own_loss else _apart, batch), loss


def _labelled(batch: Callable[[int], dict[str, Tensor]], n: int) -> tuple[object, object]:
    return batch(n), torch.zeros(n)


def _apart(batch: Callable[[int], dict[str, Tensor]], n: int) -> tuple[object, object]:
    given = batch(n)
    return given, given.pop("labels")


def ctc(outputs: object, targets: Tensor) -> Tensor:
    """Returns the loss of a speech recogniser, which its own head could only make of the values of its labels."""
    scores: Tensor = outputs.logits  # type: ignore[attr-defined]
    steps = torch.full((scores.shape[0],), scores.shape[1])
    lengths = torch.full((targets.shape[0],), targets.shape[1])
    return F.ctc_loss(F.log_softmax(scores, -1).transpose(0, 1), targets, steps, lengths)


def accepted(kind: type) -> dict[str, object]:
    """Returns the settings of a kind of configuration, with their defaults."""
    made = kind()
    known = {name: getattr(made, name) for name in made.to_dict() if hasattr(made, name)}
    names = inspect.signature(kind.__init__).parameters
    return known | {name: None for name in names if name not in known and name not in ("self", "kwargs")}


def small(kind: type, name: str = "") -> object:
    """Returns a configuration of a kind with every size made small, those of its parts too."""
    from transformers import PretrainedConfig

    given: dict[str, object] = {}
    for key, value in accepted(kind).items():
        if isinstance(value, PretrainedConfig):
            given[key] = small(type(value), f"{name}.{key}").to_dict()  # type: ignore[attr-defined]
        elif key in SMALL and not isinstance(value, list | tuple):
            given[key] = SMALL[key]
    return kind(**{**given, "num_labels": CLASSES, **BESIDE.get(name, {})})


def words(n: int) -> Tensor:
    return torch.randint(2, WORDS, (n, LENGTH))


def text(n: int) -> dict[str, Tensor]:
    ids = words(n)
    return {"input_ids": ids, "labels": ids.clone()}


def picture(n: int, channels: int = 3, side: int = SIDE) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(n, channels, side, side), "labels": torch.randint(0, CLASSES, (n,))}


def sound(n: int, samples: int = 2000) -> dict[str, Tensor]:
    return {"input_values": torch.randn(n, samples), "labels": torch.randint(2, WORDS, (n, 3))}


def sound_classes(n: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(n, 2000), "labels": torch.randint(0, CLASSES, (n,))}


def spectrum(n: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(n, 8, 64), "labels": words(n)}


TASKS: dict[str, tuple[str, Callable[[int], dict[str, Tensor]]]] = {
    "causal": ("AutoModelForCausalLM", text),
    "masked": ("AutoModelForMaskedLM", text),
    "seq2seq": ("AutoModelForSeq2SeqLM", text),
    "image": ("AutoModelForImageClassification", picture),
    "ctc": ("AutoModelForCTC", sound),
    "sound": ("AutoModelForAudioClassification", sound_classes),
    "speech": ("AutoModelForSpeechSeq2Seq", spectrum),
}
