from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models import resnet50


def test_resnet50_has_25_557_032_parameters(count: Callable[..., int]) -> None:
    assert count(resnet50.build) == 25_557_032


def test_an_image_of_224_takes_4_09_giga_multiply_adds(
    forward_flop: Callable[[nn.Module, Tensor], int],
) -> None:
    with torch.device("meta"):
        flop = forward_flop(resnet50.build(), resnet50.batch(1)[0])
    assert flop / 2 == pytest.approx(4.089e9, rel=1e-3)
