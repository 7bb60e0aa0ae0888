"""`prune`, and what `plan` and `launch` do with its masks, in the words of a shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import shardwright as sw
from planner.cluster import cluster as clusters
from planner.files import write_whole
from planner.kept import load_masks
from runtime import checkpoint as checkpoints
from tests.planner.milp.instances import cluster
from tests.runtime.test_equality import HERE

ASK = ["--profile=costs.yaml", "--cluster=c.yaml", "--batch=4", "--schedule=1f1b", "--effort=quick", "--json"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with costs, a dense plan and its run, which is the current one."""
    (tmp_path / "optimised.py").write_text(Path(HERE + "optimised.py").read_text())
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "c.yaml", clusters.dump(cluster(1)))
    did(
        "profile",
        "optimised.py",
        "--set=layers=2",
        "--device=roofline:cpu",
        "--micro=2",
        "--output=costs.yaml",
    )
    did("plan", *ASK, "--output=dense.yaml")
    did("launch", "dense.yaml", "--inline", "--steps=2", "--run=dense")
    return tmp_path


def did(*words: str) -> None:
    assert sw.run(list(words)) == 0, words


def weights(run: str) -> dict[str, torch.Tensor]:
    found = checkpoints.latest(Path(run) / "checkpoints")
    assert found is not None
    return dict(found.whole())


def test_masks_of_a_run_are_planned_for_trained_with_and_found_again_in_what_was_trained(
    trained: Path,
) -> None:
    did("prune", "dense", "--keep=0.3", "--output=k.safetensors")
    for asked, plan in (("k.safetensors", "pruned.yaml"), ("0.3", "share.yaml")):
        did("plan", *ASK, f"--kept={asked}", f"--output={plan}")
        run = plan.removesuffix(".yaml")
        did(
            "launch", plan, "--inline", "--steps=2", f"--run={run}", "--kept=k.safetensors", "--weights=dense"
        )
        did("launch", plan, "--inline", "--steps=4", f"--run={run}")
    masks, once, twice = load_masks(trained / "k.safetensors"), weights("pruned"), weights("share")
    before = weights("dense")
    assert masks.indices and all(torch.equal(twice[name], tensor) for name, tensor in once.items())
    for name, index in masks.indices.items():
        kept = torch.from_numpy(index).long()
        assert not torch.equal(once[name].reshape(-1)[kept], before[name].reshape(-1)[kept])
        assert not once[name].reshape(-1).index_fill(0, kept, 0.0).any()
    did("prune", "pruned", "--keep=0.3", "--output=again.safetensors")
    assert load_masks(trained / "again.safetensors").digest == masks.digest


def test_to_keep_everything_is_todays_plan_and_run_to_the_byte(trained: Path) -> None:
    did("plan", *ASK, "--kept=1.0", "--output=share.yaml")
    did("prune", "dense", "--keep=1.0", "--output=all.safetensors")
    did("plan", *ASK, "--kept=all.safetensors", "--output=file.yaml")
    did("launch", "share.yaml", "--inline", "--steps=2", "--run=whole", "--kept=all.safetensors")
    plans = {(trained / name).read_bytes() for name in ("dense.yaml", "share.yaml", "file.yaml")}
    assert len(plans) == 1
    tensors = [
        {
            path.relative_to(trained / run): path.read_bytes()
            for path in (trained / run).rglob("*.safetensors")
        }
        for run in ("dense", "whole")
    ]
    assert tensors[0] == tensors[1] and len(tensors[0]) > 1


def test_several_shares_are_compared_and_a_smaller_one_takes_less(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    did("plan", *ASK, "--kept=0.1,1.0", "--output=plans")
    found = json.loads(capsys.readouterr().out)
    assert [row["kept"] for row in found["rows"]] == [1.0, 0.1], found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prune", "dense", "--keep=0"], "above 0 and at most 1"),
        (["prune", "dense", "--keep=0.1", "--by=luck"], "layer, global"),
        (["prune", "dense", "--keep=0.1", "--only=nothing*"], "matches no weight"),
        (["prune", "costs.yaml", "--keep=0.1"], "costs.yaml"),
        (["plan", *ASK, "--kept=0"], "neither a file nor a share"),
        (["plan", *ASK, "--kept=costs.yaml"], "cannot be read"),
        (["launch", "dense.yaml", "--inline", "--steps=2", "--run=new", "--kept=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_pruned_is_told_in_one_message(
    words: list[str], said: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert sw.run([word for word in words if word != "--json"]) == 2
    error = capsys.readouterr().err
    assert said in error and [line[:7] for line in error.splitlines()] == ["error: "], error
