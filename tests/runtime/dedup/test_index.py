"""A training on the samples that an index file names is one on a dataset of these alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardwright
from planner.errors import BadInput
from planner.workload import load
from runtime.dedup import find, keeping, load_index, save_index

CODE = """
import torch

def build(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
def batch(n): return torch.randn(n, 8, 8), torch.randint(2, (n,))
def loss(outputs, targets): return torch.nn.functional.cross_entropy(outputs, targets)
def samples(seed, length):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(length, 8, 8, generator=draw), torch.arange(length) % 2
def dataset():
    pictures, labels = samples(1, 12)
    return torch.utils.data.TensorDataset(torch.cat([pictures, pictures[:3]]), torch.cat([labels, labels[:3]]))
def valid_dataset(): return torch.utils.data.TensorDataset(*samples(2, 4))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def index_of(file: Path, folder: Path) -> Path:
    found = find(load(str(file)).dataset(), "phash", 0)  # type: ignore[arg-type]
    save_index(folder / "kept.npy", found.kept, found.contents)
    return folder / "kept.npy"


def test_the_dataset_has_the_samples_of_the_index_in_its_order(file: Path, tmp_path: Path) -> None:
    workload = load(str(file))
    data, kept = workload.dataset(), keeping(workload, str(index_of(file, tmp_path))).dataset()
    assert len(kept) == 12  # type: ignore[arg-type]
    assert all(torch.equal(kept[i][0], data[i][0]) for i in range(12))  # type: ignore[index]
    assert keeping(workload, "") is workload


def test_an_index_file_is_refused_for_another_dataset(tmp_path: Path) -> None:
    draw, path = np.random.default_rng(0), tmp_path / "kept.npy"
    samples = [(draw.normal(size=(8, 8)), i % 2) for i in range(6)]
    found = find(samples, "dhash", 0)
    save_index(path, found.kept, found.contents)
    assert load_index(path, samples).tolist() == found.kept.tolist()
    with pytest.raises(BadInput, match="another dataset: it had 6 samples, and this one has 5"):
        load_index(path, samples[:5])
    samples[1] = (samples[1][0] + 1, 0)
    with pytest.raises(BadInput, match="another dataset: sample 1 is another one"):
        load_index(path, samples)


@pytest.mark.parametrize("kind", ["numbers", "none", "pickle", "text", "archive"])
def test_a_file_that_is_no_index_is_refused_and_nothing_is_unpickled(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.npy"
    if kind == "text":
        path.write_text("kept")
    elif kind == "archive":
        with path.open("wb") as file:
            np.savez(file, kept=np.arange(4))
    elif kind == "pickle":
        np.save(path, np.array([print], object), allow_pickle=True)
    elif kind == "numbers":
        np.save(path, np.arange(4))
    with pytest.raises(BadInput, match=r"kept.npy.*what dedup wrote"):
        load_index(path, [0] * 4)


class Halves:
    """Draws when it is read, but not in its raw half, and reads regions."""

    regions = True

    def __len__(self) -> int:
        return 4

    def raw(self, index: int) -> tuple[np.ndarray, int]:
        return np.random.default_rng(index).normal(size=(8, 8)), index

    def finish(self, raw: tuple[np.ndarray, int]) -> tuple[np.ndarray, int]:
        return raw[0] + np.random.default_rng().normal(), raw[1]

    def __getitem__(self, asked: int | tuple[int, object]) -> object:
        return asked if isinstance(asked, tuple) else self.finish(self.raw(asked))


def test_raw_halves_and_regions_of_a_dataset_are_asked_for_its_own_indices(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, path = load(str(file)), tmp_path / "kept.npy"
    monkeypatch.setitem(workload.functions, "dataset", Halves)  # type: ignore[misc]
    save_index(path, np.array([1, 3]), find(Halves(), "phash", 0).contents)  # type: ignore[arg-type]
    kept: Any = keeping(workload, str(path)).dataset()
    assert kept.regions and len(kept) == 2
    assert kept.raw(1)[1] == 3 and kept.finish((np.zeros(1), 7))[1] == 7
    assert kept[1][1] == 3 and kept[1, (slice(0, 4),)] == (3, (slice(0, 4),))


def test_a_workload_without_a_dataset_has_nothing_to_keep(tmp_path: Path, file: Path) -> None:
    index = index_of(file, tmp_path)
    file.write_text(CODE.replace("def dataset()", "def other()"))
    with pytest.raises(BadInput, match=r"has no dataset\(\) with indices"):
        keeping(load(str(file)), str(index)).dataset()


def run(*words: object) -> None:
    assert shardwright.run([str(word) for word in words]) == 0


def test_the_command_writes_an_index_that_a_run_trains_on_and_shows_random_removal_beside(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    laptop = Path(__file__).parents[3] / "plans" / "clusters" / "laptop.yaml"
    run("profile", "mine.py", "--device", "roofline:cpu", "--micro", 2, "-o", "profile.yaml")
    run(
        "plan",
        "--profile",
        "profile.yaml",
        "--cluster",
        laptop,
        "--batch",
        4,
        "--devices",
        1,
        "-o",
        "plan.yaml",
    )
    capsys.readouterr()
    run(
        "dedup", "mine.py", "--threshold", 1, "--curve", "plan.yaml", "--steps", 2, "-o", "kept.npy", "--json"
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["samples"], found["kept"], found["copies"]) == (15, 12, 3)
    assert [row["kept"] for row in found["curve"]] == [12, 12]
    assert all({"loss", "loss at random"} <= row.keys() for row in found["curve"])
    run("launch", "plan.yaml", "--inline", "--steps", 2, "--run", "run", "--samples", "kept.npy")
    assert (tmp_path / "run" / "samples.npy").read_bytes() == (tmp_path / "kept.npy").read_bytes()
    rows = np.load("kept.npy")
    np.save("kept.npy", rows[:-1])
    assert (
        shardwright.run(
            ["launch", "plan.yaml", "--inline", "--steps", "3", "--run", "run", "--samples", "kept.npy"]
        )
        == 2
    )
    assert "other index of samples" in capsys.readouterr().err


def test_a_folder_of_pictures_has_the_folders_names_as_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image: Callable[..., object] = pytest.importorskip("PIL.Image").fromarray
    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "all" / label).mkdir(parents=True)
        pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        for name in ("a", "b"):
            image(pixels).save(tmp_path / "all" / label / f"{name}.png")  # type: ignore[attr-defined]
    run("dedup", tmp_path / "all", "-o", tmp_path / "kept.npy", "--json")
    assert json.loads(capsys.readouterr().out)["kept"] == 2
