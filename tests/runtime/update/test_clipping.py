"""The norm to clip by is that of the parameters, however they are shared out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from runtime.update import Bucket, Flat, Squares, clipping

SIZES = {"a": 5, "b": 1000, "c": 33}


def flats(*names: str, first: int = 0) -> list[Flat]:
    """A bucket for each group of names, with the same gradients whatever the groups."""
    made = []
    for group in names:
        parameters = {name: nn.Parameter(torch.zeros(SIZES[name])) for name in group}
        flat = Flat(Bucket((0,), (first, first + 1), "float32", tuple(group)), parameters, [(0, 0)])
        for name, (start, end) in flat.ranges.items():
            flat.grads[start:end] = torch.randn(
                end - start, generator=torch.Generator().manual_seed(ord(name))
            )
        made.append(flat)
    return made


def table(made: list[Flat]) -> torch.Tensor:
    squares = Squares([flat.bucket for flat in made], 0, torch.device("cpu"))
    for flat in made:
        squares.take(flat)
    return squares.table


def test_squares_do_not_depend_on_who_shares_a_bucket() -> None:
    whole = table(flats("abc"))
    assert torch.equal(whole, table(flats("c", "ab"))) and torch.equal(whole, table(flats("b", "ca")))
    assert bool((whole > 0).all())


def test_squares_are_taken_in_double_precision_of_a_copy_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (made,) = flats("b")
    made.grads = made.grads.double()
    before, whole = made.grads.clone(), table([made])
    monkeypatch.setattr(clipping, "SQUARED_ELEMENTS", 300)
    assert torch.allclose(table([made]), whole, rtol=1e-12) and torch.equal(made.grads, before)


def test_the_first_of_its_holders_counts_a_parameter() -> None:
    assert not table(flats("abc", first=1)).any()
