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


@pytest.mark.parametrize("ranks", [2, 3])
def test_tensors_with_gaps_or_repeated_numbers_travel_as_any_other(ranks: int, pool: Pool) -> None:
    column = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    once = [rank + 1.0 for rank in range(ranks) for _ in column]
    sums = [sum(range(ranks + 1)) * 1.0] * len(column), [ranks * x for x in column]
    for found in pool.run("tests.runtime.layout.processes:repeated", ranks):
        assert found == [once, column * ranks, *sums]


def test_a_collective_has_let_go_of_its_tensors_when_it_returns_and_mostly_waits_for_nothing(
    pool: Pool,
) -> None:
    assert pool.run("tests.runtime.layout.processes:held_afterwards", 2) == [(0, 0), (0, 0)]
