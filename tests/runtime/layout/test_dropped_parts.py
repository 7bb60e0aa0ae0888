"""The numbers that dropout draws for parts of a tensor are as independent as those of the whole."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from planner.layout import DimCut, GroupLayout
from runtime.draws import Draw, Keys
from runtime.layout.moves import CutGroup, region
from tests.runtime.spatial.threads import run

SIZE, KEYS, KEPT = 64, 256, 0.9
MESH = (2, 2)


def masks() -> torch.Tensor:
    """What a dropout keeps of a tensor under keys of two steps, eight micro-batches and sixteen operations."""
    found = []
    for number in range(KEYS):
        keys = Keys(7, torch.device("cpu"), number % 2, number // 2 % 8)
        draw = Draw(keys, number // 16, torch.ops.aten.dropout.default, 0, 1)
        found.append(draw(torch.ones(1, SIZE, SIZE), 1 - KEPT, True)[0].ne(0))
    return torch.stack(found)


def parts(whole: torch.Tensor) -> torch.Tensor:
    half = (0, SIZE // 2, SIZE)
    layout = GroupLayout((SIZE, SIZE), (DimCut((0,), half), DimCut((1,), half)))
    own = run(4, lambda wire: torch.stack([region(x, layout, CutGroup(MESH, wire)) for x in whole]))
    return torch.stack(own)  # [rank, key, row, column]


@pytest.mark.parametrize(
    "dims", [(2, 3), (1,), (0, 1), (1, 2)], ids=["a part", "a place", "a place of any part", "a column"]
)
def test_what_parts_keep_passes_a_chi_square_test(dims: tuple[int, ...]) -> None:
    kept = parts(masks()).double()
    count = kept.sum(dims)
    drawn = kept.numel() // count.numel()
    squares = float((count - drawn * KEPT).square().sum()) / (drawn * KEPT * (1 - KEPT))
    freedom = count.numel()
    assert abs(squares - freedom) < 4 * sqrt(2 * freedom)
