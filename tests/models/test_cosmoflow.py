from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from models import cosmoflow

Count = Callable[..., int]


def test_the_cosmoflow_of_mlperf_has_8_907_556_parameters(count: Count) -> None:
    assert count(cosmoflow.build, size="mlperf") == 8_907_556


@pytest.mark.parametrize("size", ["paper128", "paper256", "paper512"])
def test_the_cosmoflow_of_the_paper_has_9_437_636_parameters_for_each_edge(size: str, count: Count) -> None:
    assert count(cosmoflow.build, size=size) == 9_437_636


@pytest.mark.parametrize(
    ("size", "giga_flop"),
    [("mlperf", 68.85), ("paper128", 18.52), ("paper256", 147.93), ("paper512", 1183.42)],
)
def test_the_convolutions_of_a_forward_pass_take_the_published_operations(
    size: str, giga_flop: float, forward_flop: Callable[[nn.Module, Tensor], int]
) -> None:
    with torch.device("meta"):
        trunk = cosmoflow.build(size=size).get_submodule("trunk")
        flop = forward_flop(trunk, cosmoflow.batch(1, size=size)[0])
    assert flop / 1e9 == pytest.approx(giga_flop, abs=0.005)


def test_dropout_can_be_left_out() -> None:
    with torch.device("meta"):
        model = cosmoflow.build(size="paper128", dropout=0.0)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
