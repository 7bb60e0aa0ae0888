"""Checkpoints: complete or not there, the same run to the bit under the same plan, loadable under any other."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from planner.errors import BadInput
from planner.plan import Plan
from planner.schedule import Overlap
from runtime.checkpoint import Checkpoint, CheckpointPart, CheckpointWriter, Facts, integrity, tensor_files
from runtime.checkpoint import checkpoint as checkpoints
from runtime.launch import launch_inline
from runtime.train import Model, job_of, prepare
from tests.pool import Pool
from tests.runtime.jobs import captured_of
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
    writer = CheckpointWriter(tmp_path, rank=0, ranks=[0], names=NAMES, keep=2)
    for step in range(4):
        writer.save(
            CheckpointPart(rank=0, tensors={"a": torch.tensor([step])}),
            Facts(step=step, sample=0, seed=0, fingerprint=""),
        )
    writer.wait()
    assert [path.name for path in integrity.complete(tmp_path)] == ["step-00000002", "step-00000003"]


def test_what_is_saved_is_the_state_at_the_call_and_only_what_a_forward_writes_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    write = tensor_files.write

    def slowly(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
        began.set()
        go_on.wait()
        seen.update(tensors)
        write(tensors, path)

    seen: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(checkpoints, "write", slowly)
    writer = CheckpointWriter(tmp_path, rank=0, ranks=[0], names=NAMES, keep=2, beat=go_on.set)
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
    second = CheckpointWriter(tmp_path, rank=1, ranks=[0, 1], names=NAMES, keep=2)
    second.save(CheckpointPart(rank=1, tensors={"b": torch.zeros(1)}), FACTS)
    assert checkpoints.latest(tmp_path) is None
    first = CheckpointWriter(tmp_path, rank=0, ranks=[0, 1], names=NAMES, keep=2)
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
