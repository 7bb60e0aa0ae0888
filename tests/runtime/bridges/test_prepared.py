"""A module, its optimizer and its loader, trained by a plan on two ranks: the losses are those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import shardwright as sw
from runtime.launch import launch_inline

CLUSTER = Path(__file__).parents[3] / "plans" / "clusters" / "laptop.yaml"


def test_ten_steps_on_two_ranks_are_those_of_one_process_and_the_module_is_trained(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    data = TensorDataset(torch.randn(40, 8), torch.randint(3, (40,)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mine = sw.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data, batch_size=8),
        loss=torch.nn.functional.cross_entropy,
        cluster=CLUSTER,
        steps=10,
        fix={"pipeline": 2, "data": 1, "micro": 4},
        schedule=["1f1b"],
        folder=tmp_path / "run",
        seed=3,
    )
    assert len(mine.plan.places) == 2 and len(mine) == 10
    seen = list(mine)
    assert [step.number for step in seen] == list(range(1, 11))
    one = launch_inline(mine.plan, tmp_path / "one", steps=10, seed=3).losses
    assert {step.number: step.loss for step in seen} == one
    after = model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    from runtime import checkpoint as checkpoints
    from runtime.runfolder import Paths

    found = checkpoints.latest(Paths(tmp_path / "one").checkpoints)
    assert found is not None
    assert all(torch.equal(after[name], value) for name, value in found.whole().items())
    with pytest.raises(sw.BadInput, match="has been started"):
        next(iter(mine))


def test_a_loader_without_a_batch_size_asks_for_one(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(sw.BadInput, match="the loader has no batch size"):
        sw.prepare(model, torch.optim.SGD, None, cluster=CLUSTER, steps=1, folder=tmp_path / "run")
