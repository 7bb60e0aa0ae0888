"""Blending: the weights of all patches sum to one everywhere, and who computes which box changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from planner.errors import BadInput
from planner.spatial import Box
from planner.workload import load
from runtime.infer import InferRequest, prepared
from runtime.infer.blend import Blend
from runtime.same_bits import threads


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


PLAIN = """
import torch
from torch import nn

def build():
    deep = nn.Sequential(nn.Conv3d(1, 64, 3, padding=1), nn.Mish(), nn.Conv3d(64, 9, 1), nn.Softmax(1))
    return nn.Sequential(deep, nn.Conv3d(9, 2, 3, padding=1))

def batch(n):
    return torch.rand(n, 1, 8, 8, 8), torch.rand(n, 2, 8, 8, 8)

def loss(outputs, targets):
    return (outputs - targets).square().mean()
"""


@pytest.mark.parametrize("mode", ["exact", "blend"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_of_a_box_are_the_same_on_any_number_of_threads(
    tmp_path: Path, mode: str, dtype: str
) -> None:
    (tmp_path / "net.py").write_text(PLAIN)
    torch.manual_seed(0)
    save_file(load(str(tmp_path / "net.py")).build().state_dict(), tmp_path / "weights.safetensors")
    np.save(tmp_path / "in.npy", np.random.default_rng(0).standard_normal((20, 20, 19)).astype("f4"))
    names = {name: str(tmp_path / name) for name in ("net.py", "weights.safetensors", "in.npy", "out.npy")}
    request = InferRequest(
        workload=names["net.py"],
        weights=names["weights.safetensors"],
        input=names["in.npy"],
        output=names["out.npy"],
        mode=mode,
        dtype=dtype,
        chunk="20",
        patch="17" if mode == "blend" else "",
    )
    applied, made = prepared(request).applied, []
    for count in (1, 2, 3, 4):
        with threads(count):
            made.append(applied.compute(((0, 20), (0, 20), (0, 19)))[0])
    assert all(np.array_equal(made[0], other) for other in made)
