"""Stages that recompute some of their layers train as those that recompute none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pool import Pool
from tests.runtime.compare import run
from tests.runtime.test_equality import HERE, plan_of


@pytest.mark.parametrize(("family", "layers"), [("1f1b", 2), ("zb-h1", 3)])
def test_stages_that_recompute_their_first_layers_train_to_the_same_bits(
    family: str, layers: int, pool: Pool, tmp_path: Path
) -> None:
    """Against the same stages without recomputation: tied weights, skips over the part that is kept, statistics."""
    shape = {"family": family, "workers": 2, "micros": 3}
    for workload in ("branches.py", "dropping.py", "normalised.py")[:: 1 if family == "1f1b" else 2]:
        kept = plan_of(HERE + workload, {}, **shape)
        plan = plan_of(HERE + workload, {}, recompute=(0, 1), recompute_first=layers, **shape)
        assert all(stage.recompute_before for stage in plan.stages)
        want = run(pool, kept, tmp_path / f"{workload}-kept", steps=2)
        have = run(pool, plan, tmp_path / f"{workload}-some", steps=2)
        assert have.losses == want.losses
        assert all(torch.equal(grad, want.grads[name]) for name, grad in have.grads.items())
        assert all(torch.equal(tensor, want.after[-1][name]) for name, tensor in have.after[-1].items())
