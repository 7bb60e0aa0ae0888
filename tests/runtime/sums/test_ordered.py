"""A sum over ranks is the same to the bit however its buffer is cut, and tells when it cannot be had."""

from __future__ import annotations

import gc
import threading
from functools import partial, reduce
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from runtime.sums import ordered
from runtime.sums.ordered import PIECE, add_up
from runtime.sums.queues import Line
from runtime.world import world as groups
from tests.pool import Pool

HERE = "tests.runtime.sums.test_ordered"


def numbers(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    made = torch.Generator().manual_seed(rank)
    return (torch.randn(size, generator=made) * 10.0 ** torch.randint(-3, 4, (size,), generator=made)).to(
        dtype
    )


def sums_of_parts(rank: int, ranks: int, rendezvous: Path, *, size: int, dtype: str, piece: int) -> bool:
    """Whether parts of every size have the sums that one process finds adding rank after rank."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    group, kind = world.new_group(range(ranks)), getattr(torch, dtype)
    assert group is not None
    line = Line()
    want = reduce(torch.add, (numbers(each, size, kind) for each in range(ranks)))
    found = []
    with patch.object(ordered, "PIECE", piece):
        for step in range(1, size + 1):
            mine = numbers(rank, size, kind)
            for done in [line.launch(partial(add_up, part, group)) for part in mine.split(step)]:
                done.result()
            found.append(torch.equal(mine, want))
    world.barrier()
    world.close()
    return all(found)


@pytest.mark.parametrize(
    ("ranks", "dtype", "piece"),
    [(3, "float32", 5), (4, "float32", PIECE), (4, "bfloat16", PIECE), (3, "complex64", 5)],
)
def test_a_sum_is_added_up_in_the_order_of_ranks_however_its_buffer_is_cut(
    ranks: int, dtype: str, piece: int, pool: Pool
) -> None:
    assert all(pool.run(f"{HERE}:sums_of_parts", ranks, size=23, dtype=dtype, piece=piece))


def lost(rank: int, ranks: int, rendezvous: Path) -> str:
    """What the others are told when the last rank goes in the middle."""
    world = groups.join(rendezvous, rank, ranks, torch.device("cpu"))
    line, sum_ = Line(), partial(add_up, torch.ones(8), dist.group.WORLD)
    line.launch(sum_).result()
    said = ""
    if rank < ranks - 1:
        try:
            line.launch(sum_).result(timeout=60)
        except RuntimeError as error:
            said = type(error).__name__
    world.close()
    return said


def test_a_rank_that_goes_ends_the_wait_of_the_others(pool: Pool) -> None:
    assert pool.run(f"{HERE}:lost", 3)[:2] == ["RuntimeError"] * 2


def test_the_thread_ends_with_whoever_launched_its_sums() -> None:
    before = threading.active_count()
    line = Line()
    assert threading.active_count() == before + 1
    del line
    gc.collect()
    assert threading.active_count() == before
