"""Pruned weights of odd models: weights that the model writes itself, and gradients that are sparse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.errors import BadInput
from planner.kept import Masks, kept_counts
from planner.plan import KeptWeights
from planner.plan.kept_weights import refused_weights
from runtime.kept import KeptFlat
from runtime.update import Bucket
from tests.captures import captured_of
from tests.runtime.kept.test_run import ONE
from tests.runtime.test_equality import plan_of

WRITTEN = """
import torch
import torch.nn.functional as F
from torch import nn


def build():
    return nn.Sequential(nn.Embedding(11, 8, max_norm=0.5), nn.Flatten(), nn.Linear(24, 11))


def batch(n):
    return torch.randint(11, (n, 3)), torch.randint(11, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)
"""


def test_a_mask_of_a_weight_that_the_model_itself_writes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "written.py").write_text(WRITTEN)
    plan = plan_of(str(tmp_path / "written.py"), {}, **ONE)
    graph = captured_of(plan.model.workload, plan.model.arguments, plan.batch.micro)[1].graph
    assert kept_counts(graph, 0.5).keys() == {"2.weight"}
    masks = Masks({"0.weight": np.arange(9, dtype=np.int32)}, {"0.weight": 88})
    with pytest.raises(
        BadInput, match=r"'0.weight', which the model itself writes .* prune those with --only"
    ):
        masks.fitted(graph)
    pruned = plan.model_copy(
        update={"kept": KeptWeights(share=0.1, digest=masks.digest, counts=masks.counts)}
    )
    assert ["the model itself writes" in str(found) for found in refused_weights(pruned, graph)] == [True]


def test_sparse_gradients_are_gathered_as_they_are_added_to_dense_ones() -> None:
    rows, index = torch.randint(7, (2, 40)), np.array([0, 3, 4, 17, 20, 21, 30], np.int32)
    dense, pruned = nn.Embedding(7, 5, sparse=True), nn.Embedding(7, 5, sparse=True)
    bucket = Bucket((0,), (0,), "float32", ("w",))
    flat = KeptFlat(bucket, {"w": pruned.weight}, [(0, 0)], masks=Masks({"w": index}, {"w": 35}))
    dense.weight.data.copy_(pruned.weight)
    dense.weight.grad = torch.zeros_like(dense.weight)
    for ids in rows:
        for module in (dense, pruned):
            F.normalize(module(ids)).sin().sum().backward()  # type: ignore[no-untyped-call]
    assert pruned.weight.grad is None
    assert torch.equal(flat.grads, dense.weight.grad.reshape(-1)[torch.from_numpy(index).long()])
