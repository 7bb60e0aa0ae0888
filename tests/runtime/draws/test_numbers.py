"""The numbers of dropout by hash: alike however they are made, and as independent as drawn ones."""

from __future__ import annotations

from math import sqrt
from unittest import mock

import pytest
import torch
from torch import Tensor

from runtime.draws import Draw, Keys, numbers

DROPOUT = torch.ops.aten.dropout.default
DROPPED = 0.25
SAMPLES, PLACES = 64, 4096


def kept(step: int, micro: int, operation: int, shape: tuple[int, ...] = (8, PLACES)) -> Tensor:
    keys = Keys(3, torch.device("cpu"), step, micro)
    return Draw(keys, operation, DROPOUT, 0, 1)(torch.ones(shape), DROPPED, True).ne(0)


def square(counts: Tensor, drawn: int, share: float) -> tuple[float, int]:
    """The sum of squares of how far counts are off, in variances, and how many counts there are."""
    off = (counts - drawn * share).square().sum() / (drawn * share * (1 - share))
    return float(off), counts.numel()


def passes(counts: Tensor, drawn: int, share: float) -> bool:
    found, freedom = square(counts.double(), drawn, share)
    return abs(found - freedom) < 4 * sqrt(2 * freedom)


ALL = torch.cat([kept(step, micro, op) for step in range(4) for micro in range(4) for op in range(4)])


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=["a place", "a sample", "all"])
def test_what_is_kept_passes_a_chi_square_test(dims: tuple[int, ...]) -> None:
    counts = ALL.sum(dims).reshape(-1)
    assert passes(counts, ALL.numel() // counts.numel(), 1 - DROPPED)


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 7, 16, 64, 100, 255, 256, 1000, 1024, 2048])
def test_two_places_of_a_sample_are_independent(lag: int) -> None:
    both = (ALL[:, lag:] & ALL[:, :-lag])[:, :: lag + 1]
    assert passes(both.sum(1), both.shape[1], (1 - DROPPED) ** 2)


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 8, 16, 32, 64, 128])
def test_two_samples_operations_steps_and_micro_batches_are_independent(lag: int) -> None:
    both = ALL[lag:] & ALL[:-lag]
    assert passes(both.sum(1), both.shape[1], (1 - DROPPED) ** 2)


def test_four_neighbours_are_kept_in_every_way_as_often_as_they_should_be() -> None:
    fours = ALL.unflatten(1, (-1, 4)).long() @ torch.tensor([1, 2, 4, 8])
    counts = fours.flatten().bincount(minlength=16).double()
    bits = torch.tensor([number.bit_count() for number in range(16)])
    expected = fours.numel() * (1 - DROPPED) ** bits * DROPPED ** (4 - bits)
    assert float(((counts - expected).square() / expected).sum()) < 15 + 4 * sqrt(30)


@pytest.mark.parametrize("share", [1e-4, 0.01, 0.5, 0.9, 0.999])
def test_any_share_is_dropped_and_what_is_kept_makes_up_for_it(share: float) -> None:
    x = torch.ones(64, 65536, dtype=torch.float64)
    made = Draw(Keys(1, torch.device("cpu")), 2, DROPOUT, 0, 1)(x, share, True)
    number = x.numel()
    assert abs(int(made.eq(0).sum()) - number * share) < 5 * sqrt(number * share * (1 - share))
    assert set(made.unique().tolist()) == {0.0, 1 / (1 - share)}


def test_all_may_be_dropped() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    made = Draw(Keys(1, torch.device("cpu")), 2, DROPOUT, 0, 1)(x, 1.0, True)
    made.sum().backward()
    assert not made.any() and x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 2])
def test_numpy_and_torch_make_the_same_numbers(dtype: torch.dtype, dim: int, rows: int) -> None:
    x = torch.ones(4, 6, 10, dtype=dtype)
    draw = Draw(Keys(1, torch.device("cpu")), 2, DROPOUT, dim, rows)
    by_numpy = draw(x, 0.3, True)
    with mock.patch.object(numbers, "_OF_NUMPY", ()):
        assert torch.equal(draw(x, 0.3, True), by_numpy)
    with mock.patch.object(numbers, "TILE", 8):
        assert torch.equal(draw(x, 0.3, True), by_numpy)


def test_a_type_that_numpy_has_not_meets_the_same_numbers() -> None:
    draw = Draw(Keys(1, torch.device("cpu")), 2, DROPOUT, 0, 1)
    small = draw(torch.ones(4, 100, dtype=torch.bfloat16), 0.3, True)
    assert torch.equal(small.ne(0), draw(torch.ones(4, 100), 0.3, True).ne(0))
