"""Products in blocks: torch's convolutions, with every number added up in one order whatever stands around it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.same_bits import SameBits, products
from runtime.same_bits.products import BLOCK, in_blocks

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@pytest.fixture(params=["the library", "term by term"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products by the library, and as they are where it does not treat all columns of a block alike."""
    if request.param == "term by term":
        monkeypatch.setattr(products, "_alike", lambda *given: False)
    yield


def drawn(seed: int, transposed: bool) -> tuple[int, Tensor, Tensor, Tensor, dict[str, object]]:
    """Returns dimensions, input, weight and bias of whole numbers, and settings of a convolution."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    d, groups = draw.randint(1, 3), draw.choice([1, 1, 2, 3])
    kernel, stride, dilation = ([draw.randint(1, 3) for _ in range(d)] for _ in range(3))
    padding = [draw.randint(0, 2) for _ in range(d)]
    space = [draw.randint(6 + (k - 1) * s, 12 + (k - 1) * s) for k, s in zip(kernel, dilation, strict=True)]
    inputs, outputs = groups * draw.randint(1, 3), groups * draw.randint(1, 3)
    shape = [inputs, outputs // groups] if transposed else [outputs, inputs // groups]
    x = torch.randint(-3, 4, (draw.randint(1, 2), inputs, *space)).double()
    weight = torch.randint(-3, 4, (*shape, *kernel)).double()
    bias = torch.randint(-3, 4, (outputs,)).double()
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        most = [max(s, a) for s, a in zip(stride, dilation, strict=True)]
        given["output_padding"] = [draw.randrange(n) for n in most]
    return d, x, weight, bias, given


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_of_whole_numbers_equal_torchs_for_any_settings(transposed: bool, way: None) -> None:
    for seed in range(40):
        d, x, weight, bias, given = drawn(seed, transposed)
        torchs = (TRANSPOSED if transposed else CONVOLUTIONS)[d]
        with SameBits(), torch.no_grad():
            made = torchs(x, weight, bias, **given)  # type: ignore[operator]
        assert torch.equal(made, torchs(x, weight, bias, **given)), (seed, given)  # type: ignore[operator]
        assert made.is_contiguous()


@pytest.mark.parametrize(("made", "summed"), [(1, 2), (1, 300), (3, 16), (17, 108), (64, 1000)])
def test_a_column_of_a_product_has_the_same_bits_alone_and_anywhere_among_others(
    made: int, summed: int, way: None
) -> None:
    torch.manual_seed(0)
    rows = torch.randn(made, summed, dtype=torch.float64)
    columns = torch.randn(summed, 2 * BLOCK + 7, dtype=torch.float64)
    found = in_blocks(rows, columns)
    near = (rows.abs() @ columns.abs()) * summed * torch.finfo(torch.float64).eps
    assert ((found - rows @ columns).abs() <= near).all()
    order = torch.randperm(columns.shape[1])
    assert torch.equal(in_blocks(rows, columns[:, order]), found[:, order])
    odd = torch.empty(rows.numel() + 1, dtype=rows.dtype)[1:].view_as(rows).copy_(rows)  # at another address
    for place in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 6):
        assert torch.equal(in_blocks(odd, columns[:, place : place + 1]), found[:, place : place + 1])


def test_a_convolution_has_the_same_bits_however_many_slabs_it_is_made_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 11, 9, 8, dtype=torch.float64)
    weight = torch.randn(4, 3, 3, 2, 3, dtype=torch.float64)
    made = []
    for slab in (products.SLAB, 20_000, 1):  # all at once, some rows, and one row after the other
        monkeypatch.setattr(products, "SLAB", slab)
        with SameBits(), torch.no_grad():
            made.append(F.conv3d(x, weight, padding=1))
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])
    torchs = F.conv3d(x, weight, padding=1)
    assert (made[0] - torchs).abs().max() <= 1e-14 * torchs.abs().max()


def test_numbers_that_are_not_finite_stay_in_their_column(way: None) -> None:
    columns = torch.ones(4, 5, dtype=torch.float64)
    columns[1, 2], columns[1, 3] = torch.nan, torch.inf
    made = in_blocks(torch.ones(2, 4, dtype=torch.float64), columns)
    assert made.isfinite().tolist() == [[True, True, False, False, True]] * 2
    assert made[0, 3] == torch.inf


def test_a_library_whose_columns_differ_by_place_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(rows: Tensor, columns: Tensor) -> Tensor:
        made = rows @ columns
        made[:, -1] = rows.flip(1) @ columns[:, -1].flip(0)
        return made

    products._alike.cache_clear()
    monkeypatch.setattr(torch, "mm", other)
    assert not products._alike(5, 100, torch.float64, 1)
    products._alike.cache_clear()


def test_a_linear_layer_has_the_same_bits_for_any_number_of_rows() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(50, 7).double()
    x = torch.randn(2, 300, 50, dtype=torch.float64)
    with SameBits(), torch.no_grad():
        whole = layer(x)
        for count in (1, 2, 77):
            assert torch.equal(layer(x[1:, 30 : 30 + count]), whole[1:, 30 : 30 + count])
    assert (whole - layer(x)).abs().max() <= 1e-14 * whole.abs().max()
