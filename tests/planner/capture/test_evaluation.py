"""Models whose code differs outside of training, evaluated under every cut: each layer is a stage of its own."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, capture, cut, evaluation_of, name_of
from planner.errors import BadInput

WIDTH = 6


class DropPath(nn.Module):
    """As timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.8)
        return x * kept.div_(0.8)


class StochasticDepth(nn.Module):
    """As torchvision writes it."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        size = [x.shape[0]] + [1] * (x.ndim - 1) if self.mode == "row" else [1] * x.ndim
        noise = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(0.5)
        return x * noise.div_(0.5)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)


class Paths(Base):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.paths = nn.ModuleList([DropPath(), StochasticDepth("row"), StochasticDepth("batch")])

    def forward(self, x: Tensor) -> Tensor:
        for layer, path in zip((self.a, self.b, self.c), self.paths, strict=True):
            x = x + path(layer(self.drop(x)))
        return self.head(x)


class Supervised(Base):
    """Auxiliary outputs in training alone, of a head that the last output has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.aux = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> object:
        x = self.a(x)
        early = [self.aux(x), self.head(x)] if self.training else []
        x = self.c(self.b(x).relu())
        return [self.head(x), *early] if early else self.head(x)


class Merged(Base):
    """What evaluation computes late reads the weights of early layers, and a state that no layer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.head(self.c(self.b(self.a(x))))
        x = self.spare(self.b(self.a(x))) * self.scale
        return self.head(F.linear(self.c(x), self.a.weight.T @ self.b.weight))


class Backwards(Base):
    """Layers run in another order."""

    def forward(self, x: Tensor) -> Tensor:
        layers = [self.a, self.b, self.c]
        for layer in layers if self.training else reversed(layers):
            x = layer(x).tanh()
        return self.head(x)


class Remembering(Base):
    """Writes buffers in training, reads them in evaluation, and writes another one then."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("mean", torch.rand(WIDTH))
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.a(x))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        else:
            self.calls += 1
            self.mean.add_(x.mean(0))
            x = x - self.mean
        return self.head(self.c(self.b(x))) / self.calls


class Masked(Base):
    """Masks of the batch's integers, which every stage can make for itself as long as it has them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([1, 0, 2, 5]))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        mask = (self.table[ids] > 0).unsqueeze(1)
        x = self.c(self.b(self.a(x) * mask))
        if not self.training:
            x, _ = torch.sort(x.masked_fill(~mask, -1.0) + ids.unsqueeze(1), 1)
            low, high = x.split(WIDTH // 2, 1)
            x = torch.cat([high, low], 1) * x.new_tensor([0.5, 2.0, 1.0] * 2)
        return self.head(x)


def loss(outputs: object, targets: Tensor) -> Tensor:
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return torch.stack([F.cross_entropy(x, targets) for x in outputs]).sum()


def batch(n: int) -> tuple[object, Tensor]:
    return (torch.randn(n, WIDTH),), torch.randint(3, (n,))


def with_ids(n: int) -> tuple[object, Tensor]:
    return (torch.randn(n, WIDTH), torch.randint(4, (n,))), torch.randint(3, (n,))


def evaluated(captured: Captured, module: nn.Module, given: tuple[object, Tensor]) -> Tensor:
    """Each layer alone, with nothing but what it holds in training or what no layer does."""
    made = evaluation_of(captured, 2)
    graph = captured.graph
    held = captured.initial(module)
    unused = {row.name for row in (*graph.parameters, *graph.buffers) if not row.users}
    values = captured.batch_values(*given)
    outer = set(values)
    for layer, stage in zip(graph.layers, cut(made, range(1, len(graph.layers))), strict=True):
        assert {name for name in stage.inputs if name in outer} <= set(layer.inputs)
        own = {*layer.parameters, *layer.buffers, *unused, *stage._constants}
        stage.place(torch.device("cpu"))
        names = [name_of(slot) for slot in stage._states]
        assert set(names) <= own
        states = [held[name] if name in held else stage._constants[name] for name in names]
        with torch.no_grad():
            results = stage._run(*(values[name] for name in stage.inputs), *states)
        values |= dict(zip(stage.outputs, results, strict=True))
    return values["loss:0"]


class Asking(Base):
    """Asks whether gradients are on, as a model does that has another way where nothing is trained."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        return self.head(self.c(x) if torch.is_grad_enabled() and x.requires_grad else x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[object, Tensor]]]] = {
    "paths": (Paths, batch),
    "deep supervision": (Supervised, batch),
    "weights of others": (Merged, batch),
    "another order": (Backwards, batch),
    "written buffers": (Remembering, batch),
    "masks": (Masked, with_ids),
    "gradients off": (Asking, batch),
}


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_under_every_cut_is_that_of_the_module_in_evaluation_mode(name: str) -> None:
    build, make = MODELS[name]
    module = build()
    captured = capture(module, make, loss)
    before = {key: x.clone() for key, x in module.state_dict().items()}
    given = make(4)
    with torch.no_grad():
        expected = loss(copy.deepcopy(module).eval()(*given[0]), given[1])  # type: ignore[misc]
    assert module.training
    for _ in range(2):
        torch.testing.assert_close(evaluated(captured, module, given), expected, rtol=0, atol=0)
    assert all(torch.equal(before[key], x) for key, x in module.state_dict().items())


def test_layers_in_another_order_are_evaluated_in_that_order() -> None:
    class Branches(Base):
        def forward(self, x: Tensor) -> Tensor:
            left = self.a(x)
            right = self.b(x if self.training else left)
            return self.head(self.c(x) + left + right)

    module = Branches()
    captured = capture(module, batch, loss).ordered(["c", "b", "a", "head", "loss"])
    given = batch(4)
    expected = loss(module.eval()(*given[0]), given[1])  # type: ignore[misc]
    torch.testing.assert_close(evaluated(captured, module.train(), given), expected, rtol=0, atol=0)


def test_capturing_an_evaluation_draws_no_numbers() -> None:
    captured = capture(Paths(), batch, loss)
    torch.manual_seed(3)
    before = torch.random.get_rng_state(), random.getstate()
    evaluation_of(captured, 2)
    assert torch.equal(before[0], torch.random.get_rng_state()) and before[1] == random.getstate()


class Branching(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        if not self.training and float(x.sum()) > 0:
            x = -x
        return self.head(self.c(x))


class Merging(Base):
    def train(self, mode: bool = True) -> Merging:
        if not mode:
            self.a.weight.data += self.b.weight
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c(self.b(self.a(x))))


class Reading(Base):
    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x = self.c(self.b(self.a(x)))
        return self.head(x if self.training else x + ids.unsqueeze(1))


class Paired(Base):
    def forward(self, x: Tensor) -> object:
        return self.head(self.c(self.b(self.a(x)))), self.training


def paired(outputs: tuple[Tensor, bool], targets: Tensor) -> object:
    lost = F.cross_entropy(outputs[0], targets)
    return lost if outputs[1] else (lost * len(targets), torch.ones(()))


@pytest.mark.parametrize(
    ("build", "make", "lost", "said"),
    [
        (
            Branching,
            batch,
            loss,
            r"test_evaluation.py:\d+: in evaluation mode: what runs depends on the values",
        ),
        (Merging, batch, loss, r"in evaluation mode: eval\(\) of the model computes with its tensors"),
        (Reading, with_ids, loss, r"test_evaluation.py:\d+: in evaluation mode: the model reads 'input.1'"),
        (Paired, batch, paired, r"loss: in evaluation mode: loss\(\) gives another number of tensors"),
    ],
)
def test_what_cannot_be_evaluated_trains_and_says_why(
    build: Callable[[], nn.Module],
    make: Callable[[int], tuple[object, Tensor]],
    lost: Callable[..., object],
    said: str,
) -> None:
    module = build()
    captured = capture(module, make, lost)
    before = {key: x.clone() for key, x in module.state_dict().items()}
    with pytest.raises(BadInput, match=said):
        evaluation_of(captured, 2)
    assert module.training
    assert all(torch.equal(before[key], x) for key, x in module.state_dict().items())
