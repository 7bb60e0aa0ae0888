"""Pruned weights of odd models: what the model writes itself, weight_norm, and gradients that are sparse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from planner.errors import BadInput
from planner.kept import Masks, kept_counts, load_masks
from planner.plan import KeptWeights
from planner.plan.kept_weights import refused_weights
from runtime.kept import KeptFlat
from runtime.update import Bucket
from tests.captures import captured_of
from tests.runtime.kept.pruned import pruned_plan
from tests.runtime.kept.test_run import ONE, opened, steps
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


NORMED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tests.runtime.workloads import masked


def build():
    return nn.Sequential(weight_norm(nn.Linear(60, 16)), nn.ReLU(), weight_norm(nn.Linear(16, 5)))


def batch(n):
    return torch.randn(n, 60), torch.randint(5, (n,))


def loss(outputs, targets):
    return F.cross_entropy(outputs, targets)


def optimizer(named_parameters, masks=""):
    return masked.optimizer(named_parameters, "adamw", masks)
"""


def test_of_weight_norm_the_direction_is_pruned_and_its_length_is_whole(tmp_path: Path) -> None:
    file, kept = str(tmp_path / "normed.py"), tmp_path / "k"
    Path(file).write_text(NORMED)
    plan = pruned_plan(file, {}, kept, keep=0.5, **ONE)
    assert {name.rpartition(".")[2] for name in load_masks(kept).counts} == {"original1"}
    have = steps(opened(plan, tmp_path / "run", kept=str(kept)), 4)
    dense = plan_of(file, {"masks": str(kept)}, **ONE)
    want = steps(opened(dense, tmp_path / "dense", weights=str(tmp_path / "run")), 4)
    assert all(torch.equal(have[name], tensor) for name, tensor in want.items())


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
