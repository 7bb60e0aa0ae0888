"""Pruned weights under what else changes how a step runs: fp16 with its scaler, compiled stages, updates at use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.plan import Plan
from planner.schedule import Overlap
from tests.pool import Pool
from tests.runtime import overlaps
from tests.runtime.compare import run
from tests.runtime.kept.pruned import pruned_plan
from tests.runtime.test_equality import HERE, plan_of

LOUD = """
import torch
from torch import nn

from tests.runtime.workloads import masked, mlp
from tests.runtime.workloads.mlp import batch, loss


def build():
    return mlp.build(9)


def optimizer(named_parameters, kind="adamw", masks=""):
    return masked.optimizer(named_parameters, kind, masks)
"""


@pytest.fixture
def loud(tmp_path: Path) -> str:
    """A workload whose optimizer may mask gradients, and whose loss may be too large for fp16."""
    (tmp_path / "loud.py").write_text(LOUD)
    return str(tmp_path / "loud.py")


def two(workload: str, settings: dict[str, str], file: Path, **shape: object) -> tuple[Plan, Plan]:
    """One plan pruned, and dense with masked gradients."""
    pruned = pruned_plan(workload, settings, file, **shape)
    return pruned, plan_of(workload, {**settings, "masks": str(file)}, **shape)


@pytest.mark.parametrize("data", [1, 2])
def test_of_fp16_the_same_steps_are_left_out_and_the_others_are_those_of_masked_dense_training(
    data: int, loud: str, pool: Pool, tmp_path: Path
) -> None:
    shape: dict[str, object] = {"workers": 2, "micros": 2, "data": data, "precision": "fp16"}
    pruned, dense = two(loud, {"factor": "300"}, tmp_path / "k", **shape)
    have = run(pool, pruned, tmp_path / "pruned", steps=8, kept=str(tmp_path / "k"), compare_holders=False)
    want = run(
        pool, dense, tmp_path / "dense", steps=8, weights=str(tmp_path / "pruned"), compare_holders=False
    )
    assert have.losses == want.losses
    for a, b in zip(have.after, want.after, strict=True):
        assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    moved = [
        any(not torch.equal(tensor, a[name]) for name, tensor in b.items())
        for a, b in zip(have.after, have.after[1:], strict=False)
    ]
    assert not moved[0] and moved[-1], moved


@pytest.mark.parametrize("family", ["1f1b", "zb-h1"])
def test_compiled_stages_train_pruned_as_masked_dense_ones_do(
    family: str, loud: str, pool: Pool, tmp_path: Path
) -> None:
    shape: dict[str, object] = {"family": family, "workers": 2, "micros": 2}
    pruned, dense = (
        plan.model_copy(update={"execution": "compiled"}) for plan in two(loud, {}, tmp_path / "k", **shape)
    )
    have = run(pool, pruned, tmp_path / "pruned", steps=3, kept=str(tmp_path / "k"))
    want = run(pool, dense, tmp_path / "dense", steps=3, weights=str(tmp_path / "pruned"))
    assert have.losses == want.losses
    for a, b in zip(have.after, want.after, strict=True):
        assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize(
    "shape",
    [
        {"family": "overlap", "workers": 1, "micros": 2, "data": 2},
        {"workers": 2, "micros": 3, "data": 2, "overlap": Overlap(parts=2, late=1, updates="at_use")},
        {"family": "chimera", "workers": 2, "micros": 2},
    ],
    ids=["overlap", "at use", "chimera"],
)
def test_updates_that_run_into_the_next_step_are_those_of_masked_dense_training(
    shape: dict[str, object], kind: str, pool: Pool, tmp_path: Path
) -> None:
    """Nobody looks at the weights between two steps, so the last updates of each run beside the next one."""
    settings = {"model": "tied", "kind": kind}
    pruned, dense = two(HERE + "masked.py", settings, tmp_path / "k", **{**shape, "update": "rolling"})
    have = overlaps.train(pool, pruned, tmp_path / "pruned", kept=str(tmp_path / "k"))
    want = overlaps.train(pool, dense, tmp_path / "dense", weights=str(tmp_path / "pruned"))
    assert have[0] == want[0] and len(have[0]) == overlaps.STEPS
    assert all(torch.equal(tensor, want[1][name]) for name, tensor in have[1].items())
