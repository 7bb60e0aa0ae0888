from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models import mobilenetv3


def test_mobilenetv3_large_has_5_483_032_parameters(count: Callable[..., int]) -> None:
    assert count(mobilenetv3.build, size="large") == 5_483_032


def test_mobilenetv3_small_has_2_542_856_parameters(count: Callable[..., int]) -> None:
    assert count(mobilenetv3.build, size="small") == 2_542_856


@pytest.mark.parametrize(("size", "multiply_adds"), [("large", 217e6), ("small", 56.5e6)])
def test_an_image_of_224_takes_the_multiply_adds_of_the_paper(
    size: str, multiply_adds: float, forward_flop: Callable[[nn.Module, Tensor], int]
) -> None:
    with torch.device("meta"):
        flop = forward_flop(mobilenetv3.build(size=size), mobilenetv3.batch(1)[0])
    assert flop / 2 == pytest.approx(multiply_adds, rel=0.02)
