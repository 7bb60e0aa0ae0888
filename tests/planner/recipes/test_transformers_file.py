"""Workload files for models of transformers are captured as they are written."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.capture import capture
from planner.errors import BadInput
from planner.recipes import TASKS, file_name, transformers_file
from planner.workload import load

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
MODELS = {
    "causal-lm": "hf:gpt2",
    "sequence-classification": "hf:BertConfig",
    "image-classification": "hf:vit",
    "ctc": "hf:wav2vec2",
    "masked-lm": "hf:bert",
    "seq2seq-lm": "hf:t5",
    "token-classification": "hf:distilbert",
    "speech-to-text": "hf:whisper",
}


@pytest.mark.parametrize("task", TASKS)
def test_a_written_file_is_captured_as_it_stands(task: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(transformers_file(MODELS[task], task))
    graph = capture(load(str(path), {"layers": "1"}), micro=2).graph
    assert graph.parameters and graph.serves(2)


@pytest.mark.parametrize("end", ["", "/config.json"])
def test_a_folder_with_a_configuration_gives_a_model_of_its_sizes(end: str, tmp_path: Path) -> None:
    folder = tmp_path / 'Our "Small" Model'
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "qwen3", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 12,'
        ' "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 100, "auto_map": {"AutoConfig": "evil.C"}}'
    )
    name = f"hf:{folder}{end}"
    assert file_name(name, "causal-lm") == 'our "small" model_causal_lm.py'
    path = tmp_path / "model.py"
    path.write_text(transformers_file(name, "causal-lm"))
    graph = capture(load(str(path), {"length": "8"}), micro=(1, 2)).graph
    assert graph.serves(1) and graph.serves(2) and "model.layers.2.mlp.down_proj" in graph.index
    for text, said in (("no", "is no JSON"), ("[]", "has no model_type"), ('{"model_type": "x"}', "'x'")):
        (folder / "config.json").write_text(text)
        with pytest.raises(BadInput, match=said):
            transformers_file(name, "causal-lm")


@pytest.mark.parametrize(
    ("name", "task", "words"),
    [
        ("hf:gpt2", "poetry", "there is no task 'poetry'"),
        ("gpt2", "causal-lm", "'gpt2' names no model"),
        ("hf:no-such", "causal-lm", "has no configuration 'no-such'"),
        ("hf:Qwen/Qwen3-8B", "causal-lm", "nothing is downloaded .*such as qwen3,.*or a folder"),
        ("hf:vit", "ctc", "ViTConfig has no model for ctc .*image-classification"),
        ("hf:torch", "ctc", "has no configuration 'torch'"),
    ],
)
def test_what_there_is_no_file_for_is_refused_with_what_there_is(name: str, task: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        transformers_file(name, task)
