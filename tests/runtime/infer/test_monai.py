"""Networks of MONAI with batch norms: boxes and passes give the numbers of the whole volume, of odd sizes too."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from runtime.infer.sweep import SweepRunner, sweep
from tests.runtime.spatial.test_box import at, boxes, captured, integral

FEATURES = (4, 4, 8, 8, 8, 4)
UNET = {"channels": (4, 8, 8), "strides": (2, 2), "norm": "batch"}
DYNAMIC = {
    "kernel_size": (3, 3, 3),
    "strides": (1, 2, 2),
    "upsample_kernel_size": (2, 2),
    "filters": (4, 8, 8),
}
NETWORKS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]] = {
    "BasicUNet 3-D": (lambda nets: nets.BasicUNet(3, 1, 2, FEATURES, norm="batch"), (35, 33, 34)),
    "BasicUNet 2-D": (lambda nets: nets.BasicUNet(2, 1, 2, FEATURES, norm="batch"), (51, 47)),
    "BasicUNet 1-D": (lambda nets: nets.BasicUNet(1, 1, 2, FEATURES, norm="batch"), (131,)),
    "UNet 3-D": (lambda nets: nets.UNet(3, 1, 2, num_res_units=2, **UNET), (36, 28, 20)),
    "UNet 2-D": (lambda nets: nets.UNet(2, 1, 2, num_res_units=1, **UNET), (36, 28)),
    "DynUNet": (lambda nets: nets.DynUNet(3, 1, 2, norm_name="batch", **DYNAMIC), (36, 28, 20)),
    "SegResNet": (
        lambda nets: nets.SegResNet(3, 4, 1, 2, norm="batch", blocks_down=(1, 2), blocks_up=(1,)),
        (26, 28, 22),
    ),
}
ROWS = 16


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_monai_is_exact(name: str) -> None:
    nets = pytest.importorskip("monai.networks.nets")
    build, space = NETWORKS[name]
    torch.manual_seed(0)
    module = build(nets).eval()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(0, 0.1)  # type: ignore[union-attr, operator]
            part.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr, operator]
    x = torch.randn(1, 1, *space)
    with torch.no_grad():
        expected, exact = module(x), deepcopy(module).double()(x.double())
    rounding = (expected - exact).abs().max()  # torch's own, which depends on the processor
    most = min(2 * rounding, 1e-6 * exact.abs().max())
    forward, reach, run = captured(module, tuple(x.shape), torch.float32)
    runner = SweepRunner(forward, {**module.state_dict(), **forward.captured.layout.traced.constants})
    whole = tuple((0, n) for n in reach.output_space)
    parts = runner.run(reach, sweep(reach, whole, 0, 4), lambda rows: x[at(rows)])
    assert (torch.cat([part for _, part in parts], 2) - exact).abs().max() <= most
    made = torch.full_like(expected, torch.nan)
    for box in boxes(reach.output_space, (ROWS,) * len(space)):
        need = reach.of(box)
        made[at(box)] = run(need, x[at(need.input)])
    assert (made - exact).abs().max() <= most


@pytest.mark.parametrize("name", ["BasicUNet 2-D", "UNet 3-D"])
def test_a_network_of_monai_with_whole_numbers_is_the_same_to_the_bit(name: str) -> None:
    nets = pytest.importorskip("monai.networks.nets")
    build, space = NETWORKS[name]
    module = integral(build(nets))
    for part in module.modules():
        if isinstance(part, nn.LeakyReLU):
            part.negative_slope = 0.0
        if isinstance(part, nn.PReLU):
            part.weight.data.fill_(2.0)
        if isinstance(part, nn.modules.conv._ConvNd):  # few weights, so that sums stay exact in fp64
            part.weight.data.mul_(torch.rand_like(part.weight) < 0.1)
    x = torch.randint(-3, 4, (1, 1, *space)).double()
    _, reach, run = captured(module, tuple(x.shape))
    with torch.no_grad():
        expected = module(x)
    assert expected.abs().max() > 0 and torch.equal(expected, expected.round())
    for box in boxes(reach.output_space, (ROWS,) * len(space)):
        need = reach.of(box)
        assert torch.equal(run(need, x[at(need.input)]), expected[at(box)])
