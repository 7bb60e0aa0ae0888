"""Boxes of a volume: what the rules say they need is enough, is not too much, and gives the whole volume's numbers.

Weights and inputs of the equality tests are small integers, so that sums are exact in any order: one wrong row, or one
row too few, would show as a difference, and rounding cannot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from planner.capture import Forward, forward_of
from planner.errors import BadInput
from planner.spatial import Box, Reach, alignment
from planner.workload import Workload
from runtime.infer.sweep import SweepRunner, sweep
from runtime.same_bits import threads
from runtime.spatial import BoxRunner
from tests.draws import covering

SIZES = {1: (61,), 2: (37, 22), 3: (15, 13, 10)}
STEPS = {1: (17,), 2: (16, 7), 3: (8, 12, 7)}
CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MAXIMUM = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
Build = Callable[[int], nn.Module]


class UNet(nn.Module):
    """A U-Net whose skips take odd sizes: one resized to its skip, one padded to it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.second, self.deepest = block(d, 2, 3), block(d, 3, 4), block(d, 4, 4)
        self.up_second, self.up_first = block(d, 8, 4), TRANSPOSED[d](4, 3, 2, stride=2)
        self.pool, self.out = MAXIMUM[d](2), CONVOLUTION[d](6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        deepest = F.interpolate(self.deepest(self.pool(second)), size=second.shape[2:], mode="nearest")
        up = self.up_first(self.up_second(torch.cat([second, deepest], 1)))
        missing = [n for a, b in zip(first.shape[:1:-1], up.shape[:1:-1], strict=True) for n in (0, a - b)]
        return self.out(torch.cat([first, F.pad(up, missing, mode="replicate")], 1))


class Mixed(nn.Module):
    """Rows that are turned round, shifted and summed over channels."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.second = CONVOLUTION[d](2, 4, 3, padding=1), CONVOLUTION[d](4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.second(torch.relu(x))
        return (
            x.amax(1, keepdim=True) - torch.flip(x, [2]).sum(1, keepdim=True) + x.narrow(1, 0, 1).roll(2, -1)
        )


class Gated(nn.Module):
    """Operations along channels alone: a gated linear unit, a shuffle and the cosine between two vectors."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first, self.last = CONVOLUTION[d](2, 8, 3, padding=1), CONVOLUTION[d](4, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.channel_shuffle(F.glu(self.first(x), 1).round(), 2)
        made: Tensor = self.last(x) * (F.cosine_similarity(x, x.flip(1), 1) > 0.271).unsqueeze(1)
        return made


def block(d: int, inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(CONVOLUTION[d](inputs, outputs, 3, padding=1), BATCH_NORM[d](outputs), nn.ReLU())


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


NETWORKS: dict[str, Build] = {
    "same": lambda d: chain(block(d, 2, 4), CONVOLUTION[d](4, 3, 3, padding=1)),
    "valid": lambda d: chain(CONVOLUTION[d](2, 4, 3), nn.ReLU(), CONVOLUTION[d](4, 3, 5)),
    "even": lambda d: chain(CONVOLUTION[d](2, 4, 4, padding="same"), CONVOLUTION[d](4, 3, 2, padding=1)),
    "dilated": lambda d: chain(
        CONVOLUTION[d](2, 4, 3, dilation=2, padding=2), CONVOLUTION[d](4, 3, 3, dilation=3, padding=1)
    ),
    "strided": lambda d: chain(
        CONVOLUTION[d](2, 4, 3, stride=2, padding=1), CONVOLUTION[d](4, 3, 3, stride=2)
    ),
    "transposed": lambda d: chain(
        CONVOLUTION[d](2, 4, 3, stride=2, padding=1),
        TRANSPOSED[d](4, 3, 3, stride=2, padding=1, output_padding=1),
        TRANSPOSED[d](3, 2, 4, stride=3, padding=1),
    ),
    "interpolated": lambda d: chain(
        CONVOLUTION[d](2, 4, 3, padding=1),
        nn.Upsample(scale_factor=2, mode=LINEAR[d]),
        CONVOLUTION[d](4, 3, 3, padding=1),
        nn.Upsample(scale_factor=2, mode="nearest"),
    ),
    "bordered": lambda d: chain(
        CONVOLUTION[d](2, 4, 3, padding=1, padding_mode="reflect"),
        CONVOLUTION[d](4, 3, 5, padding=2, padding_mode="replicate"),
        CONVOLUTION[d](3, 3, 3, padding=1, padding_mode="circular"),
    ),
    "pooled": lambda d: chain(
        MAXIMUM[d](3, 2, 1),
        AVERAGE[d](2, 2),
        CONVOLUTION[d](2, 3, 3, padding=1),
        AVERAGE[d](2, 1, ceil_mode=True),
    ),
    "mixed": Mixed,
    "gated": Gated,
    "unet": UNet,
}


def workload(build: Callable[[], nn.Module]) -> Workload:
    functions = {"build": build, "batch": lambda n: None, "loss": lambda outputs, targets: None}
    return Workload(name="a model", where="model.py", arguments={}, functions=functions)


def captured(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[Forward, Reach, BoxRunner]:
    forward = forward_of(workload(lambda: module), shape, dtype)
    tensors = {**module.state_dict(), **forward.captured.layout.traced.constants}
    return forward, Reach(forward.operations, forward.source, forward.result), BoxRunner(forward, tensors)


def boxes(space: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[Box]:
    for first in itertools.product(*(range(0, n, step) for n, step in zip(space, steps, strict=True))):
        yield tuple((a, min(a + step, n)) for a, step, n in zip(first, steps, space, strict=True))


def at(box: Box) -> tuple[slice, ...]:
    return (slice(None), slice(None), *(slice(*rows) for rows in box))


def integral(module: nn.Module) -> nn.Module:
    """Gives a module small integers, and norms that only add them."""
    torch.manual_seed(0)
    module = module.double().eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randint(-2, 3, tensor.shape))
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eps = 0.0
            part.running_var.fill_(1.0)  # type: ignore[union-attr, operator]
    return module


@pytest.mark.parametrize(("name", "d"), covering(product(NETWORKS, SIZES), kinds=lambda case: case))
def test_boxes_give_the_numbers_of_the_whole_volume(name: str, d: int) -> None:
    module = integral(NETWORKS[name](d))
    x = torch.randint(-3, 4, (1, 2, *SIZES[d])).double()
    _, reach, run = captured(module, tuple(x.shape))
    expected = module(x).detach()
    made = torch.full_like(expected, torch.nan)
    for box in boxes(reach.output_space, STEPS[d]):
        need = reach.of(box)
        made[at(box)] = run(need, x[at(need.input)])
    assert reach.output_shape == tuple(expected.shape)
    assert torch.equal(made, expected)


def test_a_model_that_gives_its_input_back_needs_the_box_alone() -> None:
    x = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    _, reach, run = captured(nn.Identity().double(), tuple(x.shape))
    need = reach.of(((3, 6), (4, 8)))
    assert need.input == need.output
    assert torch.equal(run(need, x[at(need.input)]), x[..., 3:6, 4:8])


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_in_fp32_boxes_and_passes_are_within_a_millionth_of_the_largest_number(name: str, d: int) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name](d).eval()
    x = torch.randn(1, 2, *SIZES[d])
    forward, reach, run = captured(module, tuple(x.shape), torch.float32)
    runner = SweepRunner(forward, {**module.state_dict(), **forward.captured.layout.traced.constants})
    expected = module(x).detach()
    for box in boxes(reach.output_space, STEPS[d]):
        need = reach.of(box)
        parts = runner.run(reach, sweep(reach, box, d - 1, 3), lambda rows: x[at(rows)])
        for made in (run(need, x[at(need.input)]), torch.cat([part for _, part in parts], d + 1)):
            assert (made - expected[at(box)]).abs().max() <= 1e-6 * expected.abs().max()


class Resized(nn.Module):
    def __init__(self, mode: str, **given: object) -> None:
        super().__init__()
        self.first, self.given = CONVOLUTION[1 if mode == "linear" else 2](2, 2, 3, padding=1), given
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = F.interpolate(self.first(x), mode=self.mode, **self.given)  # type: ignore[arg-type]
        return made


@pytest.mark.parametrize(
    ("space", "mode", "given"),
    [
        ((1667,), "linear", {"size": 5000}),
        ((4999,), "linear", {"size": 1667}),
        ((333,), "linear", {"scale_factor": 2.7}),
        ((333,), "linear", {"size": 999, "align_corners": True}),
        ((667, 5), "bilinear", {"size": (2000, 7)}),
        ((667, 5), "bicubic", {"size": (2000, 7)}),
        ((33, 4), "bicubic", {"scale_factor": (2.7, 0.6)}),
    ],
)
def test_interpolation_by_odd_factors_takes_the_weights_that_torch_rounds_in_long_volumes(
    space: tuple[int, ...], mode: str, given: dict[str, object]
) -> None:
    torch.manual_seed(0)
    module, x = Resized(mode, **given).eval(), torch.randn(1, 2, *space)
    _, reach, run = captured(module, tuple(x.shape), torch.float32)
    expected = module(x).detach()
    for box in boxes(reach.output_space, (497, 3)[: len(space)]):
        need = reach.of(box)
        made = run(need, x[at(need.input)])
        assert (made - expected[at(box)]).abs().max() <= 5e-7 * expected.abs().max()


def test_few_rows_are_convolved_by_onednn_as_many_are() -> None:
    torch.manual_seed(0)
    module = chain(nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, (3, 2, 1), stride=2), nn.Conv3d(3, 2, 1))
    x = torch.randn(1, 2, *SIZES[3])
    _, reach, run = captured(module.eval(), tuple(x.shape), torch.float32)
    need = reach.of(((1, 4), (2, 3), (0, 5)))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        made = run(need, x[at(need.input)])
    names = [event.key for event in seen.key_averages() for _ in range(event.count)]
    assert names.count("aten::mkldnn_convolution") == 2, "a kernel of one voxel is a matrix product"
    assert (made - module(x)[at(need.output)]).abs().max() <= 1e-6 * made.abs().max()


@pytest.mark.parametrize(("name", "d"), covering(product(NETWORKS, SIZES), kinds=lambda case: case))
def test_in_fp64_every_box_and_pass_has_the_bits_of_the_whole_volume(name: str, d: int) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name](d).double().eval()
    x = torch.randn(1, 2, *SIZES[d], dtype=torch.float64)
    forward, reach, run = captured(module, tuple(x.shape))
    runner = SweepRunner(forward, {**module.state_dict(), **forward.captured.layout.traced.constants})
    everything = tuple((0, n) for n in reach.output_space)
    one = [tuple((n // 2, n // 2 + 1) for n in reach.output_space)]  # a product of a matrix and a vector
    with threads(1):  # several may share a long sum
        whole, torchs = run(reach.of(everything), x), module(x).detach()
        assert (whole - torchs).abs().max() <= 1e-14 * torchs.abs().max(), (
            "torch adds up in an order of its own"
        )
        for box in (*boxes(reach.output_space, STEPS[d]), *one):
            need = reach.of(box)
            assert torch.equal(run(need, x[at(need.input)]), whole[at(box)])
            parts = runner.run(reach, sweep(reach, box, d - 1, 3), lambda rows: x[at(rows)])
            assert torch.equal(torch.cat([part for _, part in parts], d + 1), whole[at(box)])


@pytest.mark.parametrize(
    "name", [name for name in NETWORKS if name != "gated"]
)  # whose steps have no gradient
def test_the_first_and_the_last_row_of_the_margin_are_needed_and_none_beyond(name: str) -> None:
    torch.manual_seed(1)
    module = NETWORKS[name](1).double().eval()
    for part in module.modules():
        if isinstance(part, nn.ReLU):
            part.forward = lambda x: x * 1.5  # type: ignore[method-assign]  # which hides no row
        if isinstance(part, nn.MaxPool1d):
            part.forward = nn.AvgPool1d(part.kernel_size, part.stride, part.padding).forward  # type: ignore[method-assign]
    x = torch.randn(1, 2, *SIZES[1], dtype=torch.float64, requires_grad=True)
    _, reach, _ = captured(module, tuple(x.shape))
    expected = module(x)
    for box in boxes(reach.output_space, (5,)):
        ((low, high),) = reach.of(box).input
        (gradient,) = torch.autograd.grad(expected[at(box)].square().sum(), x, retain_graph=True)
        rows = gradient.abs().sum((0, 1)).nonzero().flatten()
        slack = 0
        assert low <= int(rows[0]) <= low + slack, box
        assert high - slack <= int(rows[-1]) + 1 <= high, box


@pytest.mark.parametrize(
    ("name", "expected"), [("same", 1), ("strided", 1), ("transposed", 6), ("interpolated", 4), ("unet", 4)]
)
def test_the_alignment_is_the_least_common_multiple_of_strides(name: str, expected: int) -> None:
    _, reach, _ = captured(NETWORKS[name](1).double(), (1, 2, 193))
    assert alignment(reach) == (expected,)
    first, again = (reach.of(((n, n + 12),)).input[0] for n in (24, 24 + expected))
    assert first[1] - first[0] == again[1] - again[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(2).transpose(1, 2)
        return self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (chain(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4)), "aten.instance_norm"),
        (chain(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), "aten.group_norm"),
        (chain(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2, 4, 1), nn.Upsample((9, 8))), "aten.adaptive_avg_pool2d"),
        (chain(nn.AdaptiveAvgPool2d(3), nn.Upsample((9, 8))), "aten.adaptive_avg_pool2d"),
        (Attention(), "needs all of space"),
    ],
)
def test_what_needs_all_of_space_is_refused_by_name_with_two_ways_out(module: nn.Module, said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        captured(module.double(), (1, 2, 9, 8))
    assert "needs all of space" in str(error.value)
    assert "--mode blend" in str(error.value) and "--devices" in str(error.value)


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_what_has_no_rule_is_not_said_to_need_all_of_space() -> None:
    with pytest.raises(
        BadInput, match=r"cumsum.* no rule for it: what part of space it needs is not known"
    ) as error:
        captured(chain(nn.Conv2d(2, 4, 3), Summed()).double(), (1, 2, 9, 8))
    assert "--mode blend" in str(error.value)


def test_a_batch_norm_with_running_statistics_is_exact_and_one_without_is_refused() -> None:
    captured(chain(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3)).double(), (1, 2, 9, 8))
    with pytest.raises(BadInput, match=r"batch_norm.* needs all of space"):
        captured(nn.BatchNorm2d(2, track_running_stats=False).double(), (1, 2, 9, 8))


def test_a_volume_larger_than_any_memory_is_walked_in_no_time() -> None:
    forward = forward_of(workload(lambda: UNet(3)), (1, 2, 20000, 20000, 10001), torch.float32)
    reach = Reach(forward.operations, forward.source, forward.result)
    need = reach.of(((8000, 8064), (16, 64), (9964, 10001)))
    assert alignment(reach) == (4, 4, 4)
    assert need.input[2][1] == 10001 and need.input[0][0] < 8000 < 8064 < need.input[0][1]
    assert all(high - low < 100 for low, high in need.input)
