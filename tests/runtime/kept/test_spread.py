"""Pruned weights and weights in bf16 where ranks share samples, and where gradients are clipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from planner.kept import load_masks
from planner.plan import KeptWeights, Plan
from tests.pool import Pool
from tests.runtime.compare import Run, expected, run
from tests.runtime.kept.pruned import masks_for, pruned_plan
from tests.runtime.spatial.test_plans import SHAPES, spatially
from tests.runtime.test_equality import HERE, plan_of

MODEL = {"model": "unet3d", "kind": "adamw"}


def same(have: Run, want: Run) -> bool:
    return have.losses == want.losses and all(
        torch.equal(x, b[name].to(x.dtype))
        for a, b in zip(have.after, want.after, strict=True)
        for name, x in a.items()
    )


def on_shards(name: str, arguments: dict[str, str], file: Path, *, pruned: bool) -> Plan:
    grids, ranks, shape = SHAPES[name]
    plan = spatially(plan_of(HERE + "masked.py", arguments, **{"micros": 2, **shape}), grids, ranks)
    if not pruned:
        return plan
    masks = load_masks(file) if file.exists() else masks_for(plan, file)
    return plan.model_copy(update={"kept": KeptWeights(share=0.3, digest=masks.digest, counts=masks.counts)})


@pytest.mark.parametrize("name", ["space alone", "space and data", "split backward", "recomputed"])
def test_on_shards_weights_are_those_of_masked_dense_training_on_the_same_ranks(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    file = tmp_path / "k"
    plan = on_shards(name, MODEL, file, pruned=True)
    have = run(pool, plan, tmp_path / "pruned", steps=3, kept=str(file), compare_holders=False)
    dense = on_shards(name, {**MODEL, "masks": str(file)}, file, pruned=False)
    begun = {"weights": str(tmp_path / "pruned"), "compare_holders": False}
    want = run(pool, dense, tmp_path / "dense", steps=3, **begun)  # type: ignore[arg-type]
    assert same(have, want)


@pytest.mark.parametrize(("name", "pruned"), [("space alone", True), ("split backward", False)])
def test_on_shards_weights_in_bf16_train_as_those_in_fp32(
    name: str, pruned: bool, pool: Pool, tmp_path: Path
) -> None:
    file = tmp_path / "k"
    plan = on_shards(name, MODEL, file, pruned=pruned).model_copy(update={"precision": "bf16"})
    settings: dict[str, object] = {"kept": str(file)} if pruned else {}
    want = run(pool, plan, tmp_path / "fp32", steps=3, compare_holders=False, **settings)
    halved = plan.model_copy(update={"weights": "bf16"})
    have = run(pool, halved, tmp_path / "bf16", steps=3, compare_holders=False, **settings)
    assert same(have, want)


@pytest.mark.parametrize("data", [1, 2])
def test_the_norm_by_which_gradients_are_clipped_is_that_of_the_kept_entries(
    data: int, pool: Pool, tmp_path: Path
) -> None:
    file, arguments = tmp_path / "k", {"double": "True"}
    shape: dict[str, object] = {"family": "1f1b", "workers": 2, "micros": 2, "data": data}
    plan = pruned_plan(HERE + "branches.py", arguments, file, **shape)
    have = run(pool, plan, tmp_path / "run", kept=str(file), clip_norm=0.05)
    want = expected(plan, tmp_path / "run", clip_norm=0.05)
    unclipped = expected(plan, tmp_path / "run")
    for a, b, c in zip(want.after, have.after, unclipped.after, strict=True):
        assert max(float((a[name] - b[name]).abs().max()) for name in a) <= 1e-12
        assert not all(torch.equal(a[name], c[name]) for name in a)
