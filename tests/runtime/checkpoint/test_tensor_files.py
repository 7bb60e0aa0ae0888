"""A training that begins with weights from safetensors files, as others write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from planner.errors import BadInput
from runtime.checkpoint import checkpoint as checkpoints
from runtime.checkpoint import tensor_files as pretrained
from runtime.train import Model, job_of, prepare
from tests.runtime.jobs import captured_of
from tests.runtime.test_equality import HERE, plan_of

BRANCHES = HERE + "branches.py"


def state(workload: str = BRANCHES) -> dict[str, torch.Tensor]:
    loaded, captured = captured_of(workload, {}, 2)
    torch.manual_seed(7)
    module = loaded.build()
    own = {row.name for row in captured.graph.parameters}
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters() if name in own}


def begun(folder: Path, weights: Path, workload: str = BRANCHES) -> dict[str, torch.Tensor]:
    plan = plan_of(workload, {}, workers=2)
    model = Model(plan, *captured_of(workload, {}, 2))
    prepare(model, folder, job_of(plan, 1, {"weights": str(weights)}))
    start = checkpoints.latest(folder / "checkpoints")
    assert start is not None
    return start.whole()


def test_a_run_begins_with_the_weights_of_a_file(tmp_path: Path) -> None:
    tensors = state()
    save_file({**tensors, "of.another.head": torch.zeros(3)}, tmp_path / "model.safetensors")
    found = begun(tmp_path / "run", tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_shards_are_found_by_their_index_and_halves_become_what_the_model_has(tmp_path: Path) -> None:
    tensors = state()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name].half() for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = begun(tmp_path / "run", tmp_path)
    assert all(torch.equal(found[name], t.half().to(t.dtype)) for name, t in tensors.items())


def test_a_tied_weight_is_taken_under_any_of_its_names(tmp_path: Path) -> None:
    _, captured = captured_of(BRANCHES, {}, 2)
    (tied,) = [row for row in captured.graph.parameters if row.aliases]
    tensors = state()
    other = {tied.aliases[0] if name == tied.name else name: tensor for name, tensor in tensors.items()}
    save_file(other, tmp_path / "model.safetensors")
    assert torch.equal(
        pretrained.read(tmp_path / "model.safetensors", captured)[tied.name], tensors[tied.name]
    )


@pytest.mark.parametrize("wrong", ["missing", "shape", "no file", "no safetensors", "two files"])
def test_what_does_not_fit_the_model_is_named(wrong: str, tmp_path: Path) -> None:
    _, captured = captured_of(BRANCHES, {}, 2)
    tensors, path = state(), tmp_path / "model.safetensors"
    name = sorted(tensors)[0]
    says = {"missing": name, "shape": name, "two files": "2 .safetensors"}.get(wrong, "cannot be read")
    if wrong == "missing":
        tensors.pop(name)
    elif wrong == "shape":
        tensors[name] = torch.zeros(99)
    if wrong == "no safetensors":
        path.write_text("pickled")
    elif wrong != "no file":
        save_file(tensors, path)
    if wrong == "two files":
        save_file(tensors, tmp_path / "other.safetensors")
        path = tmp_path
    with pytest.raises(BadInput, match=says):
        pretrained.read(path, captured)


def _file(folder: Path, given: dict[str, torch.Tensor]) -> Path:
    save_file(given, folder / "model.safetensors")
    return folder / "model.safetensors"


def _with(change: torch.Tensor, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Right weights, of which the first tensor holds other numbers at its beginning."""
    tensors = state()
    name = sorted(tensors)[0]
    whole = tensors[name].to(dtype or change.dtype)
    whole.view(-1)[0] = change
    return tensors | {name: whole}


CHANGED = {
    "whole numbers": (lambda: _with(torch.tensor(3)), "is int64 .allowed: float32"),
    "bytes": (lambda: _with(torch.tensor(3, dtype=torch.uint8)), "is uint8"),
    "truth values": (lambda: _with(torch.tensor(True)), "is bool"),
    "complex numbers": (lambda: _with(torch.tensor(1j)), "is complex64"),
    "no number": (lambda: _with(torch.tensor(float("nan"))), "holds 1 numbers that are not finite .allowed"),
    "infinity": (lambda: _with(torch.tensor(-float("inf"))), "holds 1 numbers that are not finite"),
    "1e300": (
        lambda: _with(torch.tensor(1e300, dtype=torch.float64)),
        "holds 1 numbers that are not finite as float32",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_numbers_that_would_change_in_silence_are_refused_by_name(name: str, tmp_path: Path) -> None:
    make, said = CHANGED[name]
    _, captured = captured_of(BRANCHES, {}, 2)
    tensor = sorted(state())[0]
    with pytest.raises(BadInput, match=f"'{tensor}' {said}"):
        pretrained.read(_file(tmp_path, make()), captured)


def test_a_buffer_may_hold_infinities_of_its_own_and_no_others(tmp_path: Path) -> None:
    def found(given: torch.Tensor) -> torch.Tensor:
        return pretrained._fitting("mask", given, held, tmp_path)  # type: ignore[arg-type]

    row = SimpleNamespace(shape=(2,), dtype="float16")
    held = SimpleNamespace(graph=SimpleNamespace(parameter={}, buffer={"mask": row}))
    assert found(torch.tensor([-float("inf"), 0.0])).dtype == torch.float16
    with pytest.raises(BadInput, match="'mask' holds 1 numbers that are not finite as float16"):
        found(torch.tensor([1e6, -float("inf")]))


@pytest.mark.parametrize(
    "kind", ["a pipe", "a device", "nested", "a list", "a huge header", "a folder that lies"]
)
def test_files_of_strangers_are_one_message(kind: str, tmp_path: Path) -> None:
    _, captured = captured_of(BRANCHES, {}, 2)
    path = tmp_path / "model.safetensors"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a huge header":
        path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    elif kind == "a folder that lies":
        path.mkdir()
    else:
        path = tmp_path / "model.safetensors.index.json"
        path.write_text("[" * 100_000 if kind == "nested" else "[]")
    with pytest.raises(BadInput, match=r"cannot be read|is no index|is no regular file|a folder with 0"):
        pretrained.read(path, captured)
