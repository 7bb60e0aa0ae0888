"""A model on parts over real processes: the same code as over threads, with messages of gloo."""

from __future__ import annotations

import pytest
import torch

from tests.pool import Pool
from tests.runtime.layout.processes import prepared
from tests.runtime.layout.training import EXACT, alone


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_train_as_one(ranks: int, pool: Pool) -> None:
    captured, tensors, batches = prepared()
    one = alone(captured, tensors, batches[:1])
    for found in pool.run("tests.runtime.layout.processes:step", ranks):
        assert isinstance(found, dict)
        assert abs(found.pop("loss")[0] - one.losses[0]) < EXACT
        for name, grad in one.gradients[0].items():
            mine = torch.tensor(found[name], dtype=torch.float64)
            assert float((mine - grad.flatten()).abs().max()) < EXACT, name


def test_a_collective_has_let_go_of_its_tensors_when_it_returns_and_mostly_waits_for_nothing(
    pool: Pool,
) -> None:
    assert pool.run("tests.runtime.layout.processes:held_afterwards", 2) == [(0, 0), (0, 0)]
