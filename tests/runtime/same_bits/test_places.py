"""Functions and sums have the same bits for a number, whatever stands around it and wherever it stands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.spatial.rules.pointwise import BINARY, UNARY
from runtime.infer.sweep import SweepRunner, sweep
from runtime.same_bits import SameBits, places, threads
from tests.draws import covering, part
from tests.runtime.spatial.test_box import CONVOLUTION, SIZES, STEPS, at, boxes, captured

Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(params=["many at a time", "one at a time"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As torch computes many numbers, and as it is done where their places would matter."""
    monkeypatch.setattr(places, "_tried", {})
    if request.param == "one at a time":
        monkeypatch.setattr(places, "_places_alike", lambda *given: False)
        monkeypatch.setattr(places, "_columns_alike", lambda *given: False)
    yield


OVER_CHANNELS: dict[str, Function] = {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1, keepdim=True),
    "mean of the last": lambda x: x.movedim(1, -1).mean(-1, keepdim=True),
    "mean of two": lambda x: x.unsqueeze(1).expand(-1, 3, *x.shape[1:]).mean((1, 2)),
    "std": lambda x: x.std(1, correction=0),
    "var": lambda x: x.var(1, correction=0, keepdim=True),
    "norm": lambda x: x.norm(dim=1),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "prod": lambda x: x.prod(1),
    "layer_norm": lambda x: F.layer_norm(x.movedim(1, -1), (x.shape[1],)),
    "rms_norm": lambda x: F.rms_norm(x.movedim(1, -1), (x.shape[1],)),
}


@pytest.mark.parametrize("name", OVER_CHANNELS)
@pytest.mark.parametrize("channels", [1, 7, 64])
def test_what_is_taken_over_channels_has_the_same_bits_at_any_place(
    name: str, channels: int, way: None
) -> None:
    torch.manual_seed(0)
    f = OVER_CHANNELS[name]
    x = torch.randn(1, channels, 131, dtype=torch.float64)
    order = torch.randperm(131)
    first = [0, order[:40], slice(3, 4), slice(130, 131)]
    with SameBits():
        whole, other = f(x), f(x[..., order])
        dim = next(d for d, n in enumerate(whole.shape) if n == 131)
        assert torch.equal(whole.index_select(dim, order).nan_to_num(), other.nan_to_num()), (
            "in another order"
        )
        for part in first[1:]:
            chosen = torch.arange(131)[part]
            alone = f(x[..., chosen])
            assert torch.equal(alone.nan_to_num(), whole.index_select(dim, chosen).nan_to_num())
    torchs = f(x)
    assert whole.shape == torchs.shape and whole.dtype == torchs.dtype
    assert torch.allclose(whole, torchs, rtol=1e-13, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize(
    "summed", [4_000, 16_384, 16_385, 300_000]
)  # few, the most in blocks, and over space
def test_long_sums_take_no_more_memory_than_their_numbers_ask_for(
    summed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    pad = F.pad

    def counted(x: Tensor, *given: object) -> Tensor:
        found: Tensor = pad(x, *given)  # type: ignore[arg-type]
        made.append(found.numel())
        return found

    monkeypatch.setattr(places.F, "pad", counted)
    torch.manual_seed(0)
    x = torch.randn(1, summed, 3, dtype=torch.float64)
    with SameBits():
        found, last = x.mean(1), x[..., 2:].mean(1)
    assert all(size <= max(places.BLOCK, places.COLUMNS * summed) and size <= 2**24 for size in made)
    assert summed > 16_384 or torch.equal(found[:, 2:], last)
    assert torch.allclose(found, x.mean(1), rtol=1e-12, atol=1e-15)


def of_torch() -> list[Any]:
    """Returns what torch's tests know of its functions of one or two numbers that boxes take, each function once."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes a second and more
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    kinds, casts = (UnaryUfuncInfo, BinaryUfuncInfo), ("bool", "double", "float", "half", "int", "long")
    taken = {name.removeprefix("aten.") for name in (*UNARY, *BINARY)}.difference(casts)
    fitting = [x for x in op_db if isinstance(x, kinds) and torch.float64 in x.dtypes and x.name in taken]
    return list({info.name: info for info in reversed(fitting)}.values())


def test_torchs_functions_of_single_numbers_have_the_same_bits_at_any_place(way: None) -> None:
    every = of_torch()
    assert len(every) > 50
    for info in part(every, 2):
        same_at_any_place(info)


def same_at_any_place(info: Any) -> None:
    torch.manual_seed(0)
    for sample in list(info.sample_inputs("cpu", torch.float64))[:12]:
        given = [sample.input, *sample.args]
        if not all(isinstance(x, Tensor) and x.dim() for x in given if isinstance(x, Tensor)):
            continue
        shape = torch.broadcast_shapes(*(x.shape for x in given if isinstance(x, Tensor)))
        if not shape.numel():
            continue
        flat = [x.expand(shape).reshape(-1) if isinstance(x, Tensor) else x for x in given]
        order = torch.randperm(shape.numel())
        with SameBits(), torch.no_grad():
            whole = info.op(*given, **sample.kwargs)
            mixed = info.op(*(x[order] if isinstance(x, Tensor) else x for x in flat), **sample.kwargs)
            last = info.op(*(x[-1:] if isinstance(x, Tensor) else x for x in flat), **sample.kwargs)
        plain = info.op(*given, **sample.kwargs)
        assert whole.shape == plain.shape and whole.dtype == plain.dtype
        assert whole.stride() == plain.stride()
        assert torch.allclose(whole, plain, rtol=1e-13, atol=1e-300, equal_nan=True)
        assert _equal(whole.reshape(-1)[order], mixed) and _equal(whole.reshape(-1)[-1:], last)


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def test_a_function_in_place_writes_what_it_gives(way: None) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 70, dtype=torch.float64)
    written = x.t().clone()
    with SameBits():
        found = F.silu(written, inplace=True)
        assert found is written or found.data_ptr() == written.data_ptr()
        assert torch.equal(written, F.silu(x).t())


def test_a_function_whose_numbers_differ_by_place_is_computed_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = torch.ops.aten.exp.default
    asked: list[bool] = []

    class Odd:
        """A library that takes the last number of what follows without gaps by other code."""

        _schema, tags = exact._schema, exact.tags

        def __call__(self, x: Tensor) -> Tensor:
            asked.append(x.is_contiguous())
            made = exact(x)
            if x.is_contiguous():
                made[-1] = torch.nextafter(made[-1], made[-1] * 2)
            return made

    monkeypatch.setattr(places, "_tried", {})
    x = torch.randn(64, dtype=torch.float64)
    assert torch.equal(places.each_alone(Odd(), (x,), {}), exact(x))
    assert asked == [True, True, False]


FUNCTIONS: dict[str, Function] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "selu": F.selu,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "exp": torch.exp,
    "sin": torch.sin,
    "powers": lambda x: x.abs() ** 2.3,
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum(1, keepdim=True) + x,
    "normalized": lambda x: F.normalize(x, dim=1),
    "channels last": lambda x: F.gelu(F.layer_norm(x.movedim(1, -1), (x.shape[1],))).movedim(-1, 1),
    "pairs of products": lambda x: (
        torch.matmul(x.movedim(1, -1).unsqueeze(-1)[..., :3, :], x.movedim(1, -1).unsqueeze(-2))
        .flatten(-2)
        .movedim(-1, 1)
    ),
}


class Between(nn.Module):
    """Two convolutions with a function between them."""

    def __init__(self, d: int, name: str) -> None:
        super().__init__()
        channels = 18 if name == "pairs of products" else 6
        self.first, self.last = CONVOLUTION[d](2, 6, 3, padding=1), CONVOLUTION[d](channels, 2, 3, stride=2)
        self.between = FUNCTIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.between(3 * self.first(x)))
        return made


@pytest.mark.parametrize(
    ("name", "d"), covering([(f, d) for f in FUNCTIONS for d in SIZES], kinds=lambda case: case)
)
def test_boxes_and_passes_of_networks_with_functions_have_the_bits_of_the_whole_volume(
    name: str, d: int
) -> None:
    torch.manual_seed(0)
    module = Between(d, name).double().eval()
    x = torch.randn(1, 2, *SIZES[d], dtype=torch.float64)
    forward, reach, run = captured(module, tuple(x.shape))
    runner = SweepRunner(forward, {**module.state_dict(), **forward.captured.layout.traced.constants})
    whole, torchs = run(reach.of(tuple((0, n) for n in reach.output_space)), x), module(x).detach()
    assert (whole - torchs).abs().max() <= 1e-14 * torchs.abs().max()
    draw = random.Random(0)
    drawn = [
        tuple((low, draw.randint(low + 1, n)) for n in reach.output_space for low in [draw.randrange(n)])
    ]
    for box in (*boxes(reach.output_space, STEPS[d]), *drawn):
        need = reach.of(box)
        assert torch.equal(run(need, x[at(need.input)]), whole[at(box)])
        parts = runner.run(reach, sweep(reach, box, d - 1, 3), lambda rows: x[at(rows)])
        assert torch.equal(torch.cat([part for _, part in parts], d + 1), whole[at(box)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["silu", "mish", "elu", "softplus", "exp", "softmax"])
def test_functions_and_sums_have_the_same_bits_on_any_number_of_threads(
    name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    for shape in ((1, 3, 100_003), (1, 7, 1_001)):
        x = 3 * torch.randn(shape, dtype=dtype)
        found = []
        for count in (1, 2, 3, 4):
            with threads(count), SameBits():
                found.append(FUNCTIONS[name](x))
        assert all(torch.equal(found[0], other) for other in found[1:])
