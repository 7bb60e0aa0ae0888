"""Every sum has the numbers of the ordered one, the same bits twice, and ends where a rank goes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from planner.sums import SumName, names_for, parse
from runtime.sums import NamedSum, named_sum
from runtime.world import Rail, rail_of
from runtime.world import world as groups
from tests.pool import Pool

HERE = "tests.runtime.sums.test_named"
LENGTHS = (0, 1, -1, 0, 1001)  # -1 and the second 0 stand for p - 1 and p


def made(store: dist.Store, name: SumName, rank: int, ranks: int, cards: int = 1) -> NamedSum:
    """A sum among threads of this process; cards are all the same here."""

    def rail(order: Sequence[int], part: int) -> Rail:
        return rail_of(dist.PrefixStore(f"{name} {part}/", store), order.index(rank), ranks)

    return named_sum(name, ranks, rail_of(dist.PrefixStore(f"{name} group/", store), rank, ranks), rail)


def summed(name: SumName, rows: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """What every rank has of buffers, one row a rank, after they are summed by name, one after the other."""
    store, ranks = dist.HashStore(), len(rows)
    found = [[tensor.clone() for tensor in row] for row in rows]
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            own = made(store, name, rank, ranks)
            for wait in [own.launch(tensor) for tensor in found[rank]]:
                wait()
        except BaseException as error:  # told by the test
            failed.append(error)

    threads = [Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    return found


def lengths(ranks: int) -> list[int]:
    return [0, 1, ranks - 1, ranks, 1001]


def numbers(rank: int, size: int) -> Tensor:
    made = torch.Generator().manual_seed(rank)
    return torch.randn(size, generator=made) + 3.0


@pytest.mark.parametrize("ranks", range(2, 10))
def test_every_name_equals_the_ordered_sum_and_is_exact_on_integers(ranks: int) -> None:
    sizes = lengths(ranks)
    rows = [
        [numbers(rank, size) for size in sizes]
        + [torch.arange(size, dtype=torch.int64) * (rank + 1) for size in sizes]
        for rank in range(ranks)
    ]
    want = [reduce(torch.add, column) for column in zip(*rows, strict=True)]
    for name in names_for(ranks):
        found = summed(name, rows)
        for row in found:
            for have, right, first in zip(row, want, found[0], strict=True):
                assert torch.equal(have, first), f"{name}: ranks have other bits"
                torch.testing.assert_close(have, right, rtol=1e-6, atol=0.0)
        if name.kind == "direct":
            assert all(torch.equal(a, b) for a, b in zip(found[0], want, strict=True))
