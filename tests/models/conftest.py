from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@pytest.fixture
def count() -> Callable[..., int]:
    """Parameters of what `build(**settings)` returns; a shared one counts once."""

    def count(build: Callable[..., nn.Module], **settings: object) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build(**settings).parameters())

    return count


@pytest.fixture
def forward_flop() -> Callable[[nn.Module, Tensor], int]:
    """Floating-point operations of a forward pass: two for each multiplication with its addition."""

    def forward_flop(model: nn.Module, inputs: Tensor) -> int:
        with FlopCounterMode(display=False) as counter:
            model(inputs)
        flop: int = counter.get_total_flops()
        return flop

    return forward_flop
