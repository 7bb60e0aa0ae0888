"""Writes a workload file for a model of transformers, from the configuration classes of the installed package.

Nothing is downloaded. The file sets the switches that a capture needs: no cache of keys and values, no layers that are
dropped at random, no masks that are drawn in numpy, and an attention that can be exported.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner import files
from planner.errors import BadInput

PREFIX = "hf:"
MOST_BYTES = 1 << 20  # of a config.json
SWITCHES: dict[str, object] = {  # set where the configuration has them
    "use_cache": False,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
    "ctc_zero_infinity": True,
}


@dataclass(frozen=True)
class Recipe:
    """One task: the class that makes its model, and the text of its functions."""

    auto: str
    functions: str
    switches: tuple[tuple[str, object], ...] = ()
    constants: str = ""


CAUSAL = """
def batch(n, length=128):  # replace by your own tokens
    tokens = torch.randint(CONFIG.vocab_size, (n, length))
    return {"input_ids": tokens, "labels": tokens}, tokens


def loss(outputs, targets):
    return outputs.loss  # a mean over tokens, computed by the model from its labels


def metrics(outputs, targets):
    right = outputs.logits[:, :-1].argmax(-1) == targets[:, 1:]
    return {"next_token": (right.sum(), right.numel())}
"""
SEQUENCE = """
def batch(n, length=128):  # replace by your own tokens and labels
    tokens = torch.randint(2, CONFIG.vocab_size, (n, length))
    return {"input_ids": tokens}, torch.randint(LABELS, (n,))


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.logits, targets)


def metrics(outputs, targets):
    return {"accuracy": ((outputs.logits.argmax(1) == targets).sum(), targets.numel())}
"""
IMAGE = """
def batch(n):  # replace by your own images and labels
    size = CONFIG.image_size if isinstance(CONFIG.image_size, int) else CONFIG.image_size[0]
    return {"pixel_values": torch.randn(n, CONFIG.num_channels, size, size)}, torch.randint(LABELS, (n,))


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.logits, targets)


def metrics(outputs, targets):
    return {"accuracy": ((outputs.logits.argmax(1) == targets).sum(), targets.numel())}
"""
CTC = """
def batch(n, seconds=2, letters=10):  # replace by your own sound at 16 kHz and its letters
    labels = torch.randint(1, CONFIG.vocab_size, (n, letters))
    return {"input_values": torch.randn(n, 16000 * seconds)}, labels


def loss(outputs, targets):
    frames = outputs.logits.log_softmax(-1).transpose(0, 1)
    n = targets.shape[0]
    lengths = torch.full((n,), frames.shape[0]), torch.full((n,), targets.shape[1])
    return torch.nn.functional.ctc_loss(frames, targets, *lengths, zero_infinity=True)
"""
MASKED = """
def batch(n, length=128):  # replace by your own tokens
    tokens = torch.randint(CONFIG.vocab_size, (n, length))
    hidden = torch.rand(n, length) < 0.15
    return {"input_ids": tokens.masked_fill(hidden, MASK)}, tokens.masked_fill(~hidden, -100)


def loss(outputs, targets):  # a sum and a count: micro-batches hide different numbers of tokens
    total = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total, (targets != -100).sum()


def metrics(outputs, targets):
    hidden = targets != -100
    return {"accuracy": (((outputs.logits.argmax(-1) == targets) & hidden).sum(), hidden.sum())}
"""
TOKENS = """
def batch(n, length=128):  # replace by your own tokens and a label for each
    tokens = torch.randint(CONFIG.vocab_size, (n, length))
    return {"input_ids": tokens}, torch.randint(LABELS, (n, length))


def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


def metrics(outputs, targets):
    return {"accuracy": ((outputs.logits.argmax(-1) == targets).sum(), targets.numel())}
"""
TRANSLATION = """
def batch(n, length=64):  # replace by your own tokens
    tokens = torch.randint(3, CONFIG.vocab_size, (2, n, length))
    return {"input_ids": tokens[0], "labels": tokens[1]}, tokens[1]


def loss(outputs, targets):
    return outputs.loss  # a mean over tokens, computed by the model from its labels


def metrics(outputs, targets):
    return {"next_token": ((outputs.logits.argmax(-1) == targets).sum(), targets.numel())}
"""
SPEECH = """
def batch(n, length=32):  # replace by your own spectrograms and tokens
    features = torch.randn(n, CONFIG.num_mel_bins, 2 * CONFIG.max_source_positions)
    tokens = torch.randint(CONFIG.vocab_size, (n, length))
    return {"input_features": features, "labels": tokens}, tokens


def loss(outputs, targets):
    return outputs.loss  # a mean over tokens, computed by the model from its labels


def metrics(outputs, targets):
    return {"next_token": ((outputs.logits.argmax(-1) == targets).sum(), targets.numel())}
"""
TASKS = {
    "causal-lm": Recipe("AutoModelForCausalLM", CAUSAL),
    "masked-lm": Recipe("AutoModelForMaskedLM", MASKED, constants="MASK = 103  # of your tokenizer\n"),
    "seq2seq-lm": Recipe(
        "AutoModelForSeq2SeqLM", TRANSLATION, (("pad_token_id", 0), ("decoder_start_token_id", 0))
    ),
    "token-classification": Recipe("AutoModelForTokenClassification", TOKENS, (("num_labels", 5),)),
    "sequence-classification": Recipe(
        "AutoModelForSequenceClassification", SEQUENCE, (("num_labels", 2), ("pad_token_id", 0))
    ),
    "image-classification": Recipe("AutoModelForImageClassification", IMAGE, (("num_labels", 10),)),
    "ctc": Recipe("AutoModelForCTC", CTC),
    "speech-to-text": Recipe("AutoModelForSpeechSeq2Seq", SPEECH),
}
FILE = '''"""{title} for {task}, from the configuration of transformers; written by `shardwright init`.

Weights are drawn. For pretrained ones, return `{auto}.from_pretrained(NAME, config=CONFIG)` from `build`.
"""

import torch
from transformers import {auto}, {config}

{labels}CONFIG = {config}{made}({arguments})


def build(layers: int | None = None):
    if layers is not None:
        for name in ("num_hidden_layers", "num_decoder_layers", "decoder_layers"):
            if hasattr(CONFIG, name):
                setattr(CONFIG, name, layers)
    return {auto}.from_config(CONFIG, attn_implementation="{attention}")

{functions}

def optimizer(named_parameters):
    return torch.optim.AdamW([p for _, p in named_parameters], lr=1e-4)
'''


def transformers_file(name: str, task: str) -> str:
    """Returns a workload file for a model of transformers.

    Args: `name` is hf: and a model's type such as gpt2, a class of a configuration such as GPT2Config, or a folder with
      the config.json of a model.
    Raises: BadInput where transformers is not installed, or has no such configuration for the task.
    """
    recipe = TASKS.get(task)
    if recipe is None:
        raise BadInput(f"there is no task '{task}'", where="--task", allowed=", ".join(TASKS))
    if not name.startswith(PREFIX):
        raise BadInput(
            f"'{name}' names no model",
            where="init",
            allowed="hf:TYPE such as hf:gpt2, hf:GPT2Config, or hf:FOLDER with a config.json",
        )
    folder = _folder(name.removeprefix(PREFIX))
    kind = _configuration(name.removeprefix(PREFIX) if folder is None else _type_in(folder))
    made = kind() if folder is None else kind.from_pretrained(folder)
    _check_task(kind, recipe, task)
    switches = {key: value for key, value in SWITCHES.items() if hasattr(made, key)} | dict(recipe.switches)
    labels = switches.pop("num_labels", None)
    words = [json.dumps(str(folder), ensure_ascii=False)] if folder is not None else []
    words += [f"{key}={value!r}" for key, value in switches.items()]
    words += ["num_labels=LABELS"] if labels else []
    return FILE.format(
        title=kind.__name__.removesuffix("Config"),
        task=task,
        auto=recipe.auto,
        config=kind.__name__,
        made="" if folder is None else ".from_pretrained",
        labels=recipe.constants + (f"LABELS = {labels}\n" if labels else ""),
        arguments=", ".join(words),
        attention=_attention(kind, recipe),
        functions=recipe.functions.rstrip() + "\n",
    )


def file_name(name: str, task: str) -> str:
    """Returns what a workload file is called: after the type of its model, or the folder of its configuration."""
    folder, own = _folder(name.removeprefix(PREFIX)), name.partition(":")[2]
    return f"{(own if folder is None else folder.name).lower()}_{task.replace('-', '_')}.py"


def _folder(name: str) -> Path | None:
    """Returns the folder that holds the config.json of a model; None where the name is of something else."""
    place = Path(name).expanduser()
    place = place.parent if place.name == "config.json" else place
    return place.resolve() if (place / "config.json").is_file() else None


def _type_in(folder: Path) -> str:
    file = folder / "config.json"
    try:
        told = json.loads(files.read_text(file, max_bytes=MOST_BYTES))
    except ValueError as error:
        raise BadInput(f"is no JSON: {error}", where=str(file)) from None
    found = told.get("model_type") if isinstance(told, dict) else None
    if not isinstance(found, str):
        raise BadInput(
            "has no model_type", where=str(file), allowed="the config.json of a model of transformers"
        )
    return found


def _configuration(name: str) -> Any:  # Any: a class of a package without types
    """Returns the configuration class of a type of models, or of its own name."""
    transformers = _transformers()
    known = transformers.CONFIG_MAPPING
    if name in known:
        return known[name]
    found = getattr(transformers, name, None)
    if inspect.isclass(found) and issubclass(found, transformers.PretrainedConfig):
        return found
    near = get_close_matches(name.rpartition("/")[2].lower(), known, n=4, cutoff=0.4) or ["gpt2"]
    raise BadInput(
        f"transformers {transformers.__version__} has no configuration '{name}', and nothing is downloaded",
        where="init",
        allowed=f"a type such as {', '.join(near)}, a class such as GPT2Config, or a folder with a config.json",
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise BadInput(
            f"transformers cannot be imported: {error}", where="init", allowed="pip install transformers"
        ) from error
    return transformers


def _model(kind: Any, recipe: Recipe) -> Any:
    mapping = getattr(_transformers(), recipe.auto)._model_mapping
    try:
        found = mapping[kind]
    except KeyError:
        return None
    return found[0] if isinstance(found, tuple) else found


def _check_task(kind: Any, recipe: Recipe, task: str) -> None:
    if _model(kind, recipe) is None:
        others = [name for name, other in TASKS.items() if _model(kind, other) is not None]
        raise BadInput(
            f"{kind.__name__} has no model for {task}",
            where="--task",
            allowed=", ".join(others) or "another model",
        )


def _attention(kind: Any, recipe: Recipe) -> str:
    return "sdpa" if getattr(_model(kind, recipe), "_supports_sdpa", False) else "eager"
