"""Random networks, box by box: the numbers of the whole volume, and margins of which no row is too much.

Weights and inputs are small positive integers. So sums are exact in any order, nothing cancels, and an input row is
needed exactly where its gradient is not zero.

A tensor's box has no holes: it is the hull of the rows that are read. Where strides or dilations leave rows out, those
between are computed, too, and may read a row more. So such networks are compared tensor by tensor, and those without
holes with the gradient of the whole network.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from planner.spatial import Box
from runtime.infer.sweep import SweepRunner, sweep
from tests.runtime.spatial.test_box import AVERAGE, CONVOLUTION, LINEAR, TRANSPOSED, at, captured

SIZES = {1: (67,), 2: (41, 26), 3: (19, 14, 11)}
CHANNELS = 2
Layer = tuple[str, int, int, int, int]  # kind, kernel, stride, dilation, padding


class RandomNetwork(nn.Module):
    """Layers in a chain; a skip adds what stood some layers before, cropped or padded to fit."""

    def __init__(self, d: int, layers: list[Layer]) -> None:
        super().__init__()
        self.d, self.layers = d, layers
        self.parts = nn.ModuleList(self._part(layer) for layer in layers)

    def _part(self, layer: Layer) -> nn.Module:
        kind, kernel, stride, dilation, padding = layer
        if kind == "convolution":
            return CONVOLUTION[self.d](
                CHANNELS, CHANNELS, kernel, stride=stride, dilation=dilation, padding=padding
            )
        if kind == "same":
            return CONVOLUTION[self.d](CHANNELS, CHANNELS, kernel, dilation=dilation, padding="same")
        if kind == "transposed":
            return TRANSPOSED[self.d](
                CHANNELS, CHANNELS, kernel, stride=stride, padding=min(padding, kernel - 1), dilation=dilation
            )
        if kind == "pool":
            return AVERAGE[self.d](kernel, stride, padding=min(padding, kernel // 2), ceil_mode=dilation == 2)
        if kind == "bordered":
            return CONVOLUTION[self.d](
                CHANNELS,
                CHANNELS,
                kernel,
                padding=padding,
                padding_mode=("reflect", "replicate", "circular")[dilation - 1],
            )
        if kind == "linear":
            corners = dilation == 2
            return nn.Upsample(scale_factor=stride, mode=LINEAR[self.d], align_corners=corners)
        return nn.Upsample(scale_factor=stride, mode="nearest") if kind == "upsample" else nn.Identity()

    def layer(self, number: int, seen: list[Tensor]) -> Tensor:
        """Returns what a layer makes of all that stood before it."""
        kind, kernel, _, _, padding = self.layers[number]
        x = seen[number]
        if kind != "skip":
            made: Tensor = self.parts[number](x)
            return made
        before = seen[max(0, number - kernel)]
        missing = [
            n
            for a, b in zip(x.shape[:1:-1], before.shape[:1:-1], strict=True)
            for n in (padding, a - b - padding)
        ]
        return x + F.pad(before, missing)

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for number in range(len(self.layers)):
            seen.append(self.layer(number, seen))
            if not all(0 < n <= 2 * m for n, m in zip(seen[-1].shape[2:], SIZES[self.d], strict=True)):
                raise ValueError("sizes that come to nothing, or grow")
        return seen[-1]

    def read(self, x: Tensor, box: Box) -> Box | None:
        """Returns the input's box, where each tensor's is the hull of the rows that have a gradient of the next's.

        Returns: None where no number of the input has one.
        """
        seen = [x]
        for number in range(len(self.layers)):
            seen.append(self.layer(number, seen))
        found = {len(self.layers): box}
        for number in reversed(range(len(self.layers))):
            if number + 1 not in found:
                continue
            leaves = [tensor.detach().requires_grad_(True) for tensor in seen]
            part = self.layer(number, leaves)[at(found[number + 1])]
            given = torch.autograd.grad(part.sum(), leaves, allow_unused=True)
            for place, gradient in enumerate(given):
                if gradient is not None and gradient.any():
                    found[place] = hull(span(gradient), found.get(place))
        return found.get(0)


def span(gradient: Tensor) -> Box:
    """Returns the least box that has all numbers that are not 0."""
    places = gradient.nonzero()[:, 2:]
    return tuple(zip(places.amin(0).tolist(), (places.amax(0) + 1).tolist(), strict=True))


def hull(box: Box, other: Box | None) -> Box:
    pairs = zip(box, other or box, strict=True)
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in pairs)


layers = st.tuples(
    st.sampled_from(
        ["convolution", "convolution", "same", "transposed", "pool", "bordered", "upsample", "linear", "skip"]
    ),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 3),
)


def network(d: int, drawn: list[Layer]) -> tuple[nn.Module, Tensor] | None:
    """Returns a network with small positive weights and an input; None where layers do not go together."""
    module = RandomNetwork(d, drawn).double().eval()
    torch.manual_seed(len(drawn))
    x = torch.randint(1, 4, (1, CHANNELS, *SIZES[d])).double()
    try:
        module.to("meta")(x.to("meta"))
    except (RuntimeError, ValueError):
        return None
    module.to_empty(device="cpu")
    for tensor in module.state_dict().values():
        tensor.copy_(torch.randint(1, 3, tensor.shape))
    return module, x


def rounds(module: nn.Module) -> bool:
    """Returns whether some mean is taken, whose weights may be no powers of two."""
    return any(layer[0] in ("pool", "linear") for layer in cast(RandomNetwork, module).layers)


def gapless(layer: Layer) -> Layer:
    """Returns a layer that reads every row between the first and the last one that it needs."""
    kind, kernel, stride, _, padding = layer
    free = kind in ("upsample", "linear", "skip")
    return kind, kernel, stride if free else min(stride, kernel), 1, padding


def drawn_boxes(space: tuple[int, ...], draw: random.Random) -> Iterator[Box]:
    for _ in range(4):
        yield tuple((low, draw.randint(low + 1, n)) for n in space for low in [draw.randrange(n)])


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from([1, 1, 2, 3]), st.lists(layers, min_size=1, max_size=5), st.integers(0, 99))
def test_a_random_network_gives_the_numbers_of_the_whole_volume(
    d: int, drawn: list[Layer], seed: int
) -> None:
    made = network(d, drawn)
    if made is None:
        return
    module, x = made
    forward, reach, run = captured(module, tuple(x.shape))
    runner = SweepRunner(forward, {**module.state_dict(), **forward.captured.layout.traced.constants})
    draw, whole = random.Random(seed), module(x).detach()
    near = 1e-14 * float(whole.abs().max()) if rounds(module) else 0.0
    for box in drawn_boxes(reach.output_space, draw):
        need, part = reach.of(box), whole[at(box)]
        assert (run(need, x[at(need.input)]) - part).abs().max() <= near
        along = draw.randrange(d)
        plan = sweep(reach, box, along, draw.randint(1, 6))
        parts = [y for _, y in runner.run(reach, plan, lambda rows: x[at(rows)])]
        assert (torch.cat(parts, reach.output_dims[along]) - part).abs().max() <= near


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from([1, 1, 2, 3]), st.lists(layers, min_size=1, max_size=5), st.integers(0, 99))
def test_every_box_begins_and_ends_with_rows_that_the_next_tensors_box_reads(
    d: int, drawn: list[Layer], seed: int
) -> None:
    made = network(d, drawn)
    if made is None:
        return
    module, x = made
    _, reach, _ = captured(module, tuple(x.shape))
    for box in drawn_boxes(reach.output_space, random.Random(seed)):
        read = cast(RandomNetwork, module).read(x, box)
        assert reach.of(box).input == (read or ((0, 1),) * d), "one row stands for none"


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from([1, 1, 2, 3]), st.lists(layers, min_size=1, max_size=5), st.integers(0, 99))
def test_no_row_of_a_random_networks_margin_is_too_much(d: int, drawn: list[Layer], seed: int) -> None:
    kept = [
        layer for layer in drawn if d == 1 or layer[0] != "skip"
    ]  # two readers of one tensor may need two boxes, and the hull of both is computed
    made = network(d, [gapless(layer) for layer in kept])
    if made is None:
        return
    module, x = made
    x.requires_grad_(True)
    _, reach, _ = captured(module, tuple(x.shape))
    whole = module(x)
    for box in drawn_boxes(reach.output_space, random.Random(seed)):
        (gradient,) = torch.autograd.grad(whole[at(box)].sum(), x, retain_graph=True)
        for axis, (low, high) in enumerate(reach.of(box).input):
            others = tuple(dim for dim in range(x.dim()) if dim != axis + 2)
            rows = gradient.sum(others).nonzero().flatten().tolist()
            assert not rows or (rows[0], rows[-1] + 1) == (low, high), (box, axis)
            assert rows or high - low == 1, "one row stands for none"
