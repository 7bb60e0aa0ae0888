"""Networks that nobody would write, made at random from what real ones are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from runtime.spatial.analyse import analyse
from tests.runtime.spatial import threads
from tests.runtime.spatial.equality import differences, entries, on_shards, reference, stage_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel"
)  # torch's, of what is padded
WIDTH = 4


class Around(nn.Module):
    """A function with what it needs, or a branch around a layer."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)


def _skip(x: Tensor, block: nn.Module) -> Tensor:
    return F.interpolate(block(x), size=x.shape[2:], mode="bilinear") + x


def _joined(x: Tensor, block: nn.Module, merge: nn.Module) -> Tensor:
    y: Tensor = merge(torch.cat([x, F.interpolate(block(x), size=x.shape[2:])], 1))
    return y


def _beside_means(x: Tensor, merge: nn.Module) -> Tensor:
    """What is cut along one dimension of a grid of two beside what is cut along both."""
    y: Tensor = merge(torch.cat([x.mean(3, keepdim=True).expand_as(x), x], 1))
    return y


def _gated(x: Tensor, block: nn.Module) -> Tensor:
    return x * block(x.mean((2, 3), keepdim=True)).sigmoid()


LAYERS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
    lambda: nn.Conv2d(WIDTH, WIDTH, 5, 2, 2, groups=2),
    lambda: nn.Conv2d(WIDTH, WIDTH, 3, 1, 2, dilation=2),
    lambda: nn.Conv2d(WIDTH, WIDTH, 4, 2, 1),
    lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, padding_mode="circular"),
    lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, padding_mode="replicate"),
    lambda: nn.ConvTranspose2d(WIDTH, WIDTH, 4, 2, 1),
    lambda: nn.ConvTranspose2d(WIDTH, WIDTH, 3, 2, 1, 1),
    lambda: nn.BatchNorm2d(WIDTH),
    lambda: nn.GroupNorm(2, WIDTH),
    lambda: nn.InstanceNorm2d(WIDTH),
    lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    lambda: nn.LeakyReLU(0.1),
    lambda: nn.GELU(),
    lambda: nn.Upsample(scale_factor=2, mode="nearest"),
    lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"),
    lambda: Around(lambda x: x.flip(2)),
    lambda: Around(lambda x: x[:, :, 1:]),
    lambda: Around(lambda x: F.pad(x, (1, 0, 2, 1), mode="reflect")),
    lambda: Around(_gated, nn.Conv2d(WIDTH, WIDTH, 1)),
    lambda: Around(_skip, nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, 2, 1), nn.ReLU())),
    lambda: nn.AvgPool2d(4, 3, 2, ceil_mode=True, count_include_pad=False),
    lambda: nn.Conv2d(WIDTH, WIDTH, 4, padding="same", dilation=3),
    lambda: nn.ConvTranspose2d(WIDTH, WIDTH, 2, 3, 1, 2),
    lambda: Around(lambda x: x / (1 + x.mean(2, keepdim=True).expand_as(x).square())),
    lambda: Around(_beside_means, nn.Conv2d(2 * WIDTH, WIDTH, 1)),
    lambda: Around(_joined, nn.MaxPool2d(2), nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)),
)


@dataclass(frozen=True)
class Net:
    layers: tuple[int, ...]
    size: tuple[int, int]
    grid: tuple[int, ...]


nets = st.builds(
    Net,
    st.lists(st.integers(0, len(LAYERS) - 1), min_size=2, max_size=6).map(tuple),
    st.tuples(st.integers(16, 29), st.integers(16, 23)),
    st.sampled_from([(2,), (3,), (4,), (2, 2)]),
)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(nets)
def test_any_network_on_shards_equals_one_process(net: Net) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(*(LAYERS[i]() for i in net.layers))
    try:
        with torch.no_grad():
            module(torch.zeros(2, WIDTH, *net.size))
    except (RuntimeError, ValueError):
        return  # the network is too deep for its sample, on one device, too
    ref = reference(module, (2, WIDTH, *net.size))
    stage = stage_of(ref)
    how = analyse(stage, net.grid, entries(stage, net.grid))
    made = threads.run(prod(net.grid), lambda wire: on_shards(ref, net.grid, how, wire))
    found = differences(ref, how, made, net.grid)
    assert max(found.values()) < 1e-11, found  # sums over ten thousand elements round
