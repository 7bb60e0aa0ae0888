"""A checkpoint that is not what was written is never loaded: the one before it is, and it is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from planner.errors import BadInput
from runtime import checkpoint as checkpoints
from runtime.checkpoint import Facts
from runtime.checkpoint import integrity as soundness


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (0, 2, 4):
        facts = Facts(step=step, sample=8 * step, seed=0, fingerprint="x")
        checkpoints.write_initial(tmp_path, {"w": torch.full((64,), float(step))}, facts, {})
    return tmp_path


def used(folder: Path) -> tuple[str, list[str]]:
    told: list[str] = []
    return soundness.last_sound(folder, told.append).name, told


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_sound_checkpoint_is_used_without_a_word(folder: Path) -> None:
    assert used(folder) == ("step-00000004", [])


@pytest.mark.parametrize("at", [0, 40, -1])
@pytest.mark.parametrize("file", ["part-00000.safetensors", "index.json", "index.sum"])
def test_a_flipped_bit_is_seen_and_the_one_before_is_used(file: str, at: int, folder: Path) -> None:
    where = min(at, (folder / "step-00000004" / file).stat().st_size - 1)
    flip(folder / "step-00000004" / file, where)
    name, told = used(folder)
    assert name == "step-00000002"
    assert len(told) == 1 and "checkpoint step-00000004 is spoiled" in told[0]
    found = checkpoints.latest(folder)
    assert found is not None and found.facts.step == 2
    assert (folder / "spoiled-step-00000004").is_dir()


def test_a_truncated_or_missing_file_is_seen(folder: Path) -> None:
    part = folder / "step-00000004" / "part-00000.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    (folder / "step-00000002" / "part-00000.safetensors").unlink()
    name, told = used(folder)
    assert (name, len(told)) == ("step-00000000", 2)


def test_with_nothing_sound_left_it_says_so(folder: Path) -> None:
    for path in soundness.complete(folder):
        flip(path / "part-00000.safetensors", 9)
    with pytest.raises(BadInput, match="no sound checkpoint is left"):
        used(folder)


def test_a_run_that_is_killed_while_it_removes_a_checkpoint_leaves_no_half_of_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            next(path.iterdir()).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        soundness.remove(folder / "step-00000002")
    monkeypatch.setattr(shutil, "rmtree", removed)
    assert [path.name for path in soundness.complete(folder)][-1] == "step-00000004"
    assert not (folder / "step-00000002").exists()
    (folder / "step-00000001").mkdir()  # as earlier versions left it
    soundness.remove_partial(folder)
    assert all(path in soundness.complete(folder) for path in folder.iterdir())
