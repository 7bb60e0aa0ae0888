"""The input and weight halves of the backward against the whole one, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.stage import backward
from runtime.stage.backward import Boundary, anchor_on


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


class Chained(nn.Module):
    """A weight used twice, something made of it and another, something made of that and a third."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale, self.shift = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.weight @ self.weight)
        return x @ (self.weight * self.scale) @ (self.scale + self.shift)


class AfterItsTurn(nn.Module):
    """A weight as it is where the gradient comes in, and upstream of that something made from it, as by ties."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(F.linear(x, self.weight)) * (1 + self.gain)
        return (x @ self.weight) * self.gain


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
    "weight as it is after something made from it": AfterItsTurn,
    "weights that one used twice leads to": Chained,
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


def _written(x: Tensor, w: Tensor) -> Tensor:
    w = w.clone()
    w[1] = x[0]
    return w


MAKINGS: list[Callable[[Tensor, Tensor], Tensor]] = [  # of parameters, or of what was made of them
    lambda w, v: w.t(),
    lambda w, v: 1 + w,
    lambda w, v: w.flip(0),
    lambda w, v: w.view(16).view(4, 4) if w.is_contiguous() else w,
    lambda w, v: torch.cat([w[1:3], v[:2]]),
    lambda w, v: torch.stack(w.unbind(1)),
    lambda w, v: torch.tanh(w @ v),
    lambda w, v: w * v[0],
]
USES: list[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = [
    lambda x, y, w, v: torch.tanh(x @ w),
    lambda x, y, w, v: torch.tanh(F.linear(x, w, v[0])),
    lambda x, y, w, v: torch.tanh(torch.addmm(w, x, v)),
    lambda x, y, w, v: torch.addcmul(x, w, v),
    lambda x, y, w, v: x * w,
    lambda x, y, w, v: x + w[:, :1],
    lambda x, y, w, v: torch.cat([w.chunk(2)[0], x[:2]]) * torch.cat([x[2:], v.chunk(2)[1]]),
    lambda x, y, w, v: torch.cat([w, x, w]).view(3, 4, 4).sin().sum(0),
    lambda x, y, w, v: torch.tanh(x @ y),
    lambda x, y, w, v: x.t() - y,
    lambda x, y, w, v: torch.sin(_written(x, w)),
    lambda x, y, w, v: Twice.apply(x[None], w.sum(0))[0],
]


def scribble(seed: int, weights: list[Tensor], entered: list[Tensor]) -> list[Tensor]:
    """An expression drawn at random: parameters as they are, seen through views, through things made of them and
    written into one another, each of them any number of times."""
    rng, flows, made = random.Random(seed), list(entered), list(weights)
    for _ in range(rng.randint(1, 24)):
        x, y, w, v = *rng.choices(flows, k=2), *rng.choices(made, k=2)
        if rng.random() < 0.5:
            made.append(rng.choice(MAKINGS)(w, v))
        else:
            flows.append(rng.choice(USES)(x, y, w, v))
    return [flows[-1], *rng.sample(flows[2:] + made[len(weights) :], 1)]


@pytest.mark.parametrize("block", range(10))
def test_every_path_from_an_output_to_a_parameter_is_counted_once_in_any_graph(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        torch.manual_seed(seed)
        weights = [(torch.randn(4, 4).double() / 2).requires_grad_() for _ in range(1 + seed % 4)]
        entering = [torch.randn(4, 4).double().requires_grad_() for _ in range(2)]
        outputs = scribble(seed, weights, entering)
        arriving = [torch.randn_like(y) for y in outputs]
        leaves = [*entering, *weights]
        want = torch.autograd.grad(outputs, leaves, arriving, allow_unused=True, materialize_grads=True)
        boundary = Boundary(anchor_on(torch.device("cpu")))
        inside = [boundary.enter(str(i), x.detach()) for i, x in enumerate(entering)]
        outputs = scribble(seed, weights, inside)
        roots = [(backward.edge(y), dy) for y, dy in zip(outputs, arriving, strict=True)]
        backward.weight_half(backward.input_half(roots, boundary.anchor, weights))
        passed = boundary.collect()
        have = [*(passed[name] for name in "01"), *(w.grad for w in weights)]
        for i, (a, b) in enumerate(zip(want, have, strict=True)):
            if b is None:
                assert not a.any(), (seed, i)
            else:
                assert torch.allclose(a, b, rtol=1e-10, atol=1e-10 * float(a.abs().max())), (seed, i)


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


def test_a_weight_that_is_used_once_waits_beside_one_that_is_used_twice() -> None:
    once, twice = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    boundary = Boundary(anchor_on(torch.device("cpu")))
    x = boundary.enter("x", torch.randn(2, 4))
    y = torch.tanh(F.linear(torch.tanh(F.linear(x, twice)), once)) @ twice
    owed = backward.input_half([(backward.edge(y), torch.ones_like(y))], boundary.anchor, [once, twice])
    assert [branch.node.name() for branch in owed.branches] == ["MmBackward0"]
    (early,) = (grad for _, grad in owed.roots)
    backward.weight_half(owed)
    assert twice.grad is not None and once.grad is not None and torch.equal(early, twice.grad)


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
