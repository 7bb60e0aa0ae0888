"""The input and weight halves of the backward against the whole one, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from runtime import backward
from runtime.backward import Boundary, anchor_on


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return dy * weight, (dy * x).sum((0, 1))


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(x, self.weight)


class TiedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(torch.relu(self.line(x)))


class MidEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x + self.table(torch.arange(x.shape[1])))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Turned(nn.Module):
    """One weight as it is, twice, and by two ways of something made from it and another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.weight.t() * self.scale
        x = torch.tanh(x @ self.weight)
        x = torch.tanh(x @ scaled + x @ self.weight)
        return (x @ scaled) @ self.weight.t()


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).transpose(0, 1)


CASES: dict[str, Callable[[], nn.Module]] = {
    "linear on three dims": lambda: nn.Linear(8, 8),
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "in-place relu before a linear": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)
    ),
    "norms": lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.RMSNorm(8)),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "custom autograd function": Custom,
    "weight used twice": TiedTwice,
    "weight used as it is and turned": Turned,
    "embedding in the middle": MidEmbedding,
    "lstm": Recurrent,
    "unused parameter and a view at the end": Unused,
}


def run(module: nn.Module, x: Tensor, split: bool) -> tuple[Tensor, dict[str, Tensor | None]]:
    module.zero_grad()
    boundary = Boundary(anchor_on(x.device))
    y = module(boundary.enter("x", x))
    roots = [(backward.edge(y), torch.linspace(-1, 1, y.numel()).reshape(y.shape))]
    parameters = list(module.parameters())
    if split:
        owed = backward.input_half(roots, boundary.anchor, parameters)
        del y
        backward.weight_half(owed)
    else:
        backward.whole(roots)
    return boundary.collect()["x"], {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_the_graph_walk_equals_the_whole_backward_to_the_bit(case: str) -> None:
    torch.manual_seed(0)
    module, x = CASES[case](), torch.randn(3, 5, 8)
    whole, split = run(module, x, False), run(module, x, True)
    assert torch.equal(whole[0], split[0])
    for name, grad in whole[1].items():
        assert (grad is None) == (split[1][name] is None), name
        assert grad is None or torch.equal(grad, split[1][name]), name


def test_the_input_half_leaves_the_weight_gradients_of_a_linear_for_later() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    boundary = Boundary(anchor_on(torch.device("cpu")))
    y = module(boundary.enter("x", torch.randn(2, 4)))
    parameters = list(module.parameters())
    owed = backward.input_half([(backward.edge(y), torch.ones_like(y))], boundary.anchor, parameters)
    assert "x" in boundary.grads
    assert all(p.grad is None for p in parameters)
    backward.weight_half(owed)
    assert all(p.grad is not None for p in parameters)


def test_without_an_input_that_needs_a_gradient_the_whole_backward_is_the_weight_half() -> None:
    module = nn.Linear(4, 4)
    boundary = Boundary(anchor_on(torch.device("cpu")))
    y = module(torch.randn(2, 4))
    parameters = list(module.parameters())
    owed = backward.input_half([(backward.edge(y), torch.ones_like(y))], boundary.anchor, parameters)
    assert module.weight.grad is None
    backward.weight_half(owed)
    assert module.weight.grad is not None


def test_gradients_from_later_consumers_are_added_before_the_stage_s_own() -> None:
    boundary = Boundary(anchor_on(torch.device("cpu")))
    x = boundary.enter("x", torch.tensor([1.0]))
    y = x * 1.0 + x * -1.0
    later = (backward.edge(x), torch.tensor([1e-8]))
    backward.whole([(backward.edge(y), torch.ones(1)), later])
    assert boundary.collect()["x"].item() == 0.0  # (1e-8 - 1) + 1, in that order


def test_a_gradient_leaves_with_the_strides_that_it_arrived_with() -> None:
    boundary = Boundary(anchor_on(torch.device("cpu")))
    x = boundary.enter("x", torch.randn(3, 4))
    y = x.transpose(0, 1)
    backward.whole([(backward.edge(y), torch.ones(4, 3))])
    assert boundary.collect()["x"].stride() == (1, 3)


def test_an_input_that_no_gradient_reaches_passes_zeros() -> None:
    boundary = Boundary(anchor_on(torch.device("cpu")))
    x, z = boundary.enter("x", torch.randn(2)), boundary.enter("z", torch.randn(2))
    backward.whole([(backward.edge(x * 2), torch.ones(2))])
    found = boundary.collect()
    assert z.requires_grad and torch.equal(found["z"], torch.zeros(2)) and found["x"].tolist() == [2.0, 2.0]
