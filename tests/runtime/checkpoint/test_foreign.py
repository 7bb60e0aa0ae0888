"""Checkpoints that somebody else has made: an index is data, and what it names lies in its own folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from planner.errors import BadInput
from runtime.checkpoint import Checkpoint, complete
from runtime.checkpoint import integrity as judge

PART = "part-00000.safetensors"
RIGHT: dict[str, Any] = {
    "version": 2,
    "facts": {"step": 3, "sample": 0, "seed": 0, "fingerprint": "x", "extra": {}},
    "files": {"model/w": PART},
    "settings": {"w": {"group": {"betas": [0.9, 0.99], "maximize": None}}},
    "names": {"w": "w"},
    "sums": {PART: "0 00000000"},
}
WRONG: dict[str, Any] = {
    "a list": [],
    "null": None,
    "no facts": {**RIGHT, "facts": None},
    "a step of text": {**RIGHT, "facts": RIGHT["facts"] | {"step": "3"}},
    "a step of 10^30": {**RIGHT, "facts": RIGHT["facts"] | {"step": 10**30}},
    "an unknown key": {**RIGHT, "more": 1},
    "files of a list": {**RIGHT, "files": []},
    "a part above": {**RIGHT, "files": {"model/w": "../other/" + PART}},
    "a part elsewhere": {**RIGHT, "files": {"model/w": "/etc/passwd"}},
    "a part that is the folder": {**RIGHT, "files": {"model/w": ".."}},
    "a sum above": {**RIGHT, "sums": {"../../x": "0 0"}},
    "a sum of a number": {**RIGHT, "sums": {PART: 0}},
    "settings of text": {**RIGHT, "settings": "x"},
    "settings one deep": {**RIGHT, "settings": {"w": {"lr": 0.1}}},
    "another version": {**RIGHT, "version": 4},
    "pieces with a gap": {
        **RIGHT,
        "version": 3,
        "pieces": {"model/w": {"shape": [4], "parts": {PART: [1, 4]}}},
    },
    "a piece above": {
        **RIGHT,
        "version": 3,
        "pieces": {"model/w": {"shape": [4], "parts": {"../x": [0, 4]}}},
    },
}


def made(folder: Path, index: str) -> Path:
    checkpoint = folder / "step-00000003"
    checkpoint.mkdir()
    (checkpoint / judge.INDEX).write_text(index)
    return checkpoint


@pytest.mark.parametrize("name", WRONG)
def test_an_index_that_is_none_is_one_message(name: str, tmp_path: Path) -> None:
    checkpoint = made(tmp_path, json.dumps(WRONG[name]))
    with pytest.raises(
        BadInput, match=r"no complete checkpoint|which is no file in it|version 4|do not make it up"
    ):
        Checkpoint.open(checkpoint)
    (checkpoint / judge.SUM_OF_INDEX).write_text(judge.settle(checkpoint / judge.INDEX))
    assert judge.flaw(checkpoint)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "9" * 5000, "\x00", "{"])
def test_an_index_of_no_json_is_one_message(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no complete checkpoint"):
        Checkpoint.open(made(tmp_path, text))


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a folder", "no tensors", "missing"])
def test_a_part_that_is_none_is_one_message(kind: str, tmp_path: Path) -> None:
    checkpoint = made(tmp_path, json.dumps(RIGHT))
    part = checkpoint / PART
    if kind == "a pipe":
        os.mkfifo(part)
    elif kind == "a link":
        part.symlink_to("/etc/passwd")
    elif kind == "a folder":
        part.mkdir()
    elif kind == "no tensors":
        part.write_bytes(b"\xff" * 100)
    with pytest.raises(BadInput, match=r"cannot be read|is no file in it"):
        Checkpoint.open(checkpoint).parameters(["w"])


def test_a_right_index_keeps_what_optimizers_have_written(tmp_path: Path) -> None:
    found = Checkpoint.open(made(tmp_path, json.dumps(RIGHT)))
    assert found.settings == RIGHT["settings"] and found.facts.step == 3


def test_only_folders_with_the_name_of_a_step_are_checkpoints(tmp_path: Path) -> None:
    right = made(tmp_path, json.dumps(RIGHT))
    for name in ("step-", "step-x", "step-\N{SUPERSCRIPT TWO}", "step-1.partial", "step-" + "1" * 40):
        (tmp_path / name).mkdir()
        (tmp_path / name / judge.INDEX).write_text("{}")
    assert complete(tmp_path) == [right]
