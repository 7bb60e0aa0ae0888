"""Checkpoints: complete or not there, the same run to the bit under the same plan, loadable under any other."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from planner.errors import BadInput
from planner.plan import Plan
from planner.schedule import Overlap
from runtime import checkpoint as checkpoints
from runtime.checkpoint import (
    Checkpoint,
    CheckpointPart,
    CheckpointWriter,
    Copies,
    Facts,
    Keeping,
    integrity,
)
from runtime.checkpoint import part as parts
from runtime.checkpoint import writer as writing
from runtime.checkpoint.part import write_part
from runtime.launch import launch_inline
from runtime.train import Model, job_of, prepare
from tests.captures import captured_of
from tests.pool import Pool
from tests.runtime.plans import plan_for
from tests.runtime.test_equality import HERE, plan_of

pytestmark = pytest.mark.usefixtures("captures_once")
FACTS = Facts(step=0, sample=0, seed=0, fingerprint="sha256:x")
NAMES = {"a": "a", "b": "b"}
BRANCHES = HERE + "branches.py"


def train(pool: Pool, plan: Plan, folder: Path, steps: int, **settings: object) -> None:
    model = Model(plan, *captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro))
    paths, _ = prepare(model, folder, job_of(plan, steps, settings))
    pool.run("tests.runtime.jobs:whole_run", len(plan.places), folder=str(paths.root))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoints.latest(folder / "checkpoints")
    assert found is not None
    return found.whole()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


AT_USE = {"workers": 1, "data": 2, "update": "rolling", "overlap": Overlap(parts=2, late=1, updates="at_use")}


@pytest.mark.parametrize(
    "shape", [{"family": "1f1b"}, {"family": "chimera"}, {"family": "zb-v", "data": 2}, AT_USE]
)
@pytest.mark.parametrize(
    ("workload", "arguments"),
    [("mlp", {}), (HERE + "normalised.py", {}), (HERE + "mlp.py", {"layers": "9", "gamma": "0.7"})],
)
def test_a_resumed_run_is_the_uninterrupted_run_to_the_bit(
    workload: str, arguments: dict[str, str], shape: dict[str, object], pool: Pool, tmp_path: Path
) -> None:
    plan = plan_of(workload, arguments, **({"workers": 2, "micros": 2} | shape))
    train(pool, plan, tmp_path / "whole", 4)
    train(pool, plan, tmp_path / "parts", 2)
    train(pool, plan, tmp_path / "parts", 4)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_an_optimizer_that_draws_numbers_draws_the_same_on_all_replicas_and_when_it_is_resumed(
    pool: Pool, tmp_path: Path
) -> None:
    """Also where the model itself draws, for other samples on each replica."""
    common: dict[str, object] = {"family": "1f1b", "workers": 1}
    shapes = {"two": {"data": 2, "micros": 2}, "parts": {"data": 2, "micros": 2}, "one": {"micros": 4}}
    plans = {x: plan_of(HERE + "drawing.py", {"jitter": "True"}, **common, **shapes[x]) for x in shapes}
    train(pool, plans["two"], tmp_path / "two", 4)
    train(pool, plans["parts"], tmp_path / "parts", 2)
    train(pool, plans["parts"], tmp_path / "parts", 4)
    train(pool, plans["one"], tmp_path / "one", 4)
    two, parts, one = (weights(tmp_path / name) for name in ("two", "parts", "one"))
    assert same(two, parts)
    assert max(float((one[name] - x).abs().max()) for name, x in two.items()) < 1e-6


def test_any_plan_continues_what_another_began(pool: Pool, tmp_path: Path) -> None:
    first = plan_of(BRANCHES, {"double": "True"}, family="chimera", workers=2, micros=4)
    second = plan_of(BRANCHES, {"double": "True"}, family="zb-h1", workers=3, micros=2, data=2)
    train(pool, first, tmp_path / "run", 2)
    train(pool, second, tmp_path / "run", 4)
    workload, _ = captured_of(BRANCHES, {"double": "True"}, 2)
    launch_inline(first, tmp_path / "inline", steps=4, workload=workload)
    a, b = weights(tmp_path / "run"), weights(tmp_path / "inline")
    assert a.keys() == b.keys()
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-12


def test_a_checkpoint_loads_into_the_plain_module(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(BRANCHES, {"double": "False"}, family="1f1b", workers=3, micros=3)
    train(pool, plan, tmp_path, 2)
    workload, _ = captured_of(BRANCHES, {"double": "False"}, 2)
    module = workload.build()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(weights(tmp_path))  # strict: every name, tied and unused ones too
    assert not torch.equal(module.state_dict()["head.weight"], before["head.weight"])


def test_nobody_holds_a_tensor_twice_in_a_checkpoint(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of(BRANCHES, {"double": "False"}, family="chimera", workers=2, micros=2, data=2)
    train(pool, plan, tmp_path, 1)
    found = checkpoints.latest(tmp_path / "checkpoints")
    assert found is not None and found.facts.step == 1 and found.facts.sample == plan.batch.samples
    names: list[str] = []
    for part in sorted(set(found.files.values())):
        with safe_open(found.folder / part, framework="pt") as file:
            names += file.keys()
    assert sorted(names) == sorted(found.files)
    assert len(names) == len(set(names))


def test_the_last_k_are_kept(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, rank=0, ranks=[0], names=NAMES, keep=Keeping(last=2))
    for step in range(4):
        writer.save(
            CheckpointPart(rank=0, tensors={"a": torch.tensor([step])}),
            Facts(step=step, sample=0, seed=0, fingerprint=""),
        )
    writer.wait()
    assert [path.name for path in integrity.complete(tmp_path)] == ["step-00000002", "step-00000003"]


def test_nothing_is_made_through_a_link_in_the_place_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "foreign")
    folder = tmp_path / "run" / "checkpoints"
    writer = CheckpointWriter(folder, rank=0, ranks=[0], names=NAMES, keep=Keeping(last=2))
    part = CheckpointPart(rank=0, tensors={"a": torch.tensor([1.0])})
    with pytest.raises(OSError, match="No such file"):
        writer.save(part, Facts(step=1, sample=0, seed=0, fingerprint=""))
        writer.wait()
    assert list((tmp_path / "foreign").iterdir()) == []


def test_what_is_saved_is_the_state_at_the_call_and_only_what_a_forward_writes_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    write = parts.write

    def slowly(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
        began.set()
        go_on.wait()
        seen.update(tensors)
        write(tensors, path)

    seen: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(parts, "write", slowly)
    writer = CheckpointWriter(
        tmp_path, rank=0, ranks=[0], names=NAMES, keep=Keeping(last=2), beat=lambda _: go_on.set()
    )
    flat = torch.zeros(1000)
    weights, moved = flat[:500], torch.zeros(1000)
    writer.save(CheckpointPart(rank=0, tensors={"a": weights, "b": moved}, moving=frozenset("b")), FACTS)
    assert began.wait(10)
    moved.fill_(1)  # as the next forward pass does
    writer.until_on_file()
    assert go_on.is_set(), "an update waits for the file, and says meanwhile that it lives"
    flat.fill_(1)
    writer.wait()
    written = Checkpoint.open(tmp_path / "step-00000000").parameters(["a", "b"])
    assert [float(x.sum()) for x in written.values()] == [0, 0]
    assert seen["model/a"].data_ptr() == weights.data_ptr(), "what only an update changes is not copied"


def test_a_checkpoint_without_all_its_parts_does_not_count(tmp_path: Path) -> None:
    second = CheckpointWriter(tmp_path, rank=1, ranks=[0, 1], names=NAMES, keep=Keeping(last=2))
    second.save(CheckpointPart(rank=1, tensors={"b": torch.zeros(1)}), FACTS)
    assert checkpoints.latest(tmp_path) is None
    first = CheckpointWriter(tmp_path, rank=0, ranks=[0, 1], names=NAMES, keep=Keeping(last=2))
    first.save(CheckpointPart(rank=0, tensors={"a": torch.zeros(1)}), FACTS)
    first.wait()
    second.wait()
    found = checkpoints.latest(tmp_path)
    assert found is not None and set(found.whole()) == {"a", "b"}
    assert list(tmp_path.glob("*.partial")) == []


def test_half_written_checkpoints_are_removed_when_a_run_starts_again(tmp_path: Path) -> None:
    (tmp_path / "step-00000007.partial").mkdir()
    checkpoints.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    checkpoints.write_initial(tmp_path, {"a": torch.zeros(1)}, FACTS, {})
    index = tmp_path / "step-00000000" / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"version": 99}))
    with pytest.raises(BadInput, match="version 99"):
        checkpoints.latest(tmp_path)


def test_a_run_is_not_resumed_with_another_seed(pool: Pool, tmp_path: Path) -> None:
    plan = plan_of("mlp", {}, workers=1, micros=1)
    launch_inline(plan, tmp_path, steps=1)
    with pytest.raises(BadInput, match="seed 1"):
        launch_inline(plan, tmp_path, steps=2, seed=1)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    launch_inline(plan_of("mlp", {}, workers=1, micros=1), tmp_path, steps=1)
    _, captured = captured_of("mlp", {"layers": "5"}, 2)
    other = plan_for(captured.graph, "mlp", arguments={"layers": 5}, workers=1, micros=1)
    with pytest.raises(BadInput, match="another model"):
        launch_inline(other, tmp_path, steps=2)


def test_who_waits_for_a_part_beats_only_while_somebody_writes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LOOK_S", 0.0)
    beats: list[bool] = []
    first = CheckpointWriter(tmp_path, rank=0, ranks=[0, 1], names=NAMES, keep=Keeping(), beat=beats.append)
    first.save(CheckpointPart(rank=0, tensors={"a": torch.zeros(1)}), FACTS)
    waiter = threading.Thread(target=first.wait)
    waiter.start()
    other = tmp_path / "step-00000000.partial" / "part-00001.safetensors.new"
    time.sleep(0.5)
    still = len(beats)
    time.sleep(0.5)
    assert len(beats) == still, "nobody has moved"
    other.write_bytes(b"12345")
    time.sleep(0.5)
    assert len(beats) > still and beats[-1], "it waits for another rank, which moves"
    other.unlink()
    write_part(other.parent, CheckpointPart(rank=1, tensors={"b": torch.zeros(1)}))
    waiter.join(20)
    assert [path.name for path in integrity.complete(tmp_path)] == ["step-00000000"]


def test_a_full_disk_is_told_with_path_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parts, "write", full)
    with pytest.raises(OSError, match=r"a part of a checkpoint of 4000 bytes: '.*part-00000") as found:
        write_part(tmp_path, CheckpointPart(rank=0, tensors={"a": torch.zeros(1000)}))
    assert found.value.errno == errno.ENOSPC


def test_checkpoints_of_multiples_stay_for_ever_and_copies_bring_a_lost_folder_back(tmp_path: Path) -> None:
    plan = plan_of("mlp", {}, workers=1, micros=1)
    settings: dict[str, object] = {
        "save_every": 1,
        "keep": 1,
        "keep_every": 3,
        "copies": str(tmp_path / "far"),
    }
    launch_inline(plan, tmp_path / "run", steps=4, **settings)
    names = [path.name for path in integrity.complete(tmp_path / "run" / "checkpoints")]
    assert names == ["step-00000003", "step-00000004"]
    assert Copies(str(tmp_path / "far")).steps() == [3, 4]
    whole = launch_inline(plan, tmp_path / "whole", steps=6)
    again = launch_inline(plan, tmp_path / "new", steps=6, **settings)
    assert again.losses == {step: loss for step, loss in whole.losses.items() if step > 4}
    assert same(weights(tmp_path / "new"), weights(tmp_path / "whole"))


def test_a_place_for_copies_that_is_none_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plan = plan_of("mlp", {}, workers=1, micros=1)
    for url, words in (("nowhere://x", "cannot be reached"), (f"{tmp_path}/file", "takes no file")):
        with pytest.raises(BadInput, match=words):
            launch_inline(plan, tmp_path / "run", steps=1, copies=url)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lr": "0.5"}, "other optimizer: SGD"), ({"clip_norm": 1.0}, "other limit of gradients")],
)
def test_a_folder_is_not_taken_up_by_another_training_of_the_same_model(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "work.py"
    file.write_text(WORK)
    plan = plan_of(str(file), {"lr": "0.1"}, workers=1, micros=1)
    launch_inline(plan, tmp_path / "run", steps=1)
    if "lr" in change:
        plan = plan.model_copy(update={"model": plan.model.model_copy(update={"arguments": change})})
        change = {}
    with pytest.raises(BadInput, match=words):
        launch_inline(plan, tmp_path / "run", steps=2, **change)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("index / 10", "index / 11 + 1", "other samples than those"),
        ("momentum=0.9", "momentum=0.8", "optimizer"),
    ],
)
def test_a_folder_is_not_taken_up_with_other_data_or_rates(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    for name in ("work", "other"):
        (tmp_path / f"{name}.py").write_text(WORK if name == "work" else WORK.replace(old, new))
    plan = plan_of(str(tmp_path / "work.py"), {}, workers=1, micros=1)
    launch_inline(plan, tmp_path / "run", steps=1)
    other = plan.model_copy(
        update={"model": plan.model.model_copy(update={"workload": str(tmp_path / "other.py")})}
    )
    with pytest.raises(BadInput, match=words):
        launch_inline(other, tmp_path / "run", steps=2)
    launch_inline(plan, tmp_path / "run", steps=2)


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path: Path) -> None:
    plan = plan_of("mlp", {}, workers=1, micros=1)
    launch_inline(plan, tmp_path / "run", steps=1)
    newest = integrity.complete(tmp_path / "run" / "checkpoints")[-1]
    part = newest / "part-00000.safetensors"
    tensors = load_file(part)
    name = next(key for key in sorted(tensors) if key.startswith("model/"))
    save_file(tensors | {name: torch.zeros(3, 3, 3)}, part)
    index = json.loads((newest / "index.json").read_text())
    index["sums"][part.name] = integrity.settle(part)
    (newest / "index.json").write_text(json.dumps(index, sort_keys=True))
    (newest / "index.sum").write_text(integrity.settle(newest / "index.json"))
    with pytest.raises(BadInput, match=r"is \(3, 3, 3\)"):
        launch_inline(plan, tmp_path / "run", steps=2)


WORK = """
import torch
from models.mlp import batch, build, loss

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.full((64,), index / 10), torch.tensor(index % 10)

def dataset(lr=0.1): return Data()
def optimizer(named, lr=0.1): return torch.optim.SGD([p for _, p in named], lr=lr, momentum=0.9)
"""
