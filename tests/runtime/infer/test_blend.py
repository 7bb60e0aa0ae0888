"""Blending: the weights of all patches sum to one everywhere, and who computes which box changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from planner.errors import BadInput
from planner.spatial import Box
from runtime.infer.blend import Blend


@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_the_weights_sum_to_one_for_every_allowed_patch_overlap_and_volume(
    size: int, patch: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, patch // 2))
    blend = Blend((size,), (patch,), (overlap,))
    total = np.zeros(size)
    for first, weight in zip(blend.starts(0), blend.weights[0], strict=True):
        assert first >= 0 and first + len(weight) <= size
        total[first : first + len(weight)] += weight
    assert np.abs(total - 1).max() < 1e-6


@pytest.mark.parametrize("overlap", [(5, 4), (-1, 4)])
def test_an_overlap_beyond_half_of_the_patch_is_refused(overlap: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="0 to half of the patch"):
        Blend((20, 20), (9, 8), overlap)


def test_any_boxes_give_the_same_bytes_and_a_constant_stays_a_constant() -> None:
    blend = Blend((23, 17), (8, 6), (3, 3))
    volume = torch.randn(1, 2, 23, 17)

    def read(box: Box) -> tuple[Tensor, int]:
        return volume[(..., *(slice(*rows) for rows in box))], 1

    def run(x: Tensor) -> Tensor:
        return x * x.mean()

    whole, odd = blend.box(((0, 23), (0, 17)), read, run)
    assert odd == len(blend.starts(0)) * len(blend.starts(1))
    for box in (((0, 5), (0, 17)), ((5, 23), (0, 4)), ((5, 23), (4, 17))):
        part, _ = blend.box(box, read, run)
        assert torch.equal(part, whole[(..., *(slice(*rows) for rows in box))])
    ones, _ = blend.box(((3, 20), (2, 15)), read, torch.ones_like)
    assert (ones - 1).abs().max() < 1e-6
