"""What forward leaves behind is carried or refused: a table of constructs, each against the module's own training."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from random import Random
from typing import NoReturn

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, capture, check_training, self_check
from planner.capture.stage_modules import whole
from planner.errors import BadInput
from planner.workload import Workload
from tests.draws import SEED
from tests.planner.capture.constructs import EQUAL, LOSSES, OPAQUE, REFUSED


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4), torch.randn(n, 3)


def checked(
    module: nn.Module, loss: Callable[..., object] = F.mse_loss, opaque: list[str] | None = None
) -> Captured:
    captured = capture(module, batch, loss, opaque=opaque or [])
    said = check_training(captured, module, batch, loss, samples=1)
    assert said == "" or "it is no mean over samples" in said
    return captured


@pytest.mark.parametrize("name", EQUAL)
def test_a_construct_trains_as_its_module_does(name: str) -> None:
    torch.manual_seed(0)
    module = EQUAL[name]()
    before = {key: x.clone() for key, x in module.state_dict().items()}
    captured = checked(module, opaque=OPAQUE.get(name))
    assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())
    own = copy.deepcopy(module).train()
    stage = whole(captured)
    stage.materialise(captured.initial(module))
    optimizers = [torch.optim.SGD(x.parameters(), 0.1) for x in (own, stage)]
    for step in range(3):
        inputs, targets = batch(5 if captured.graph.symbolic_batch else captured.graph.captured_micro)
        torch.manual_seed(step)
        a = F.mse_loss(own(inputs), targets)
        torch.manual_seed(step)
        b = stage(captured.batch_values(inputs, targets))["loss:0"]
        for loss, optimizer in zip((a, b), optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(a, b)
    held = dict(stage.named_buffers()) | dict(stage.named_parameters())
    for key, x in own.state_dict().items():
        if key in held:
            torch.testing.assert_close(held[key], x)


@pytest.mark.parametrize("name", REFUSED)
def test_a_construct_is_refused_by_name(name: str) -> None:
    torch.manual_seed(0)
    make, words = REFUSED[name]
    with pytest.raises(BadInput) as caught:
        checked(make(), opaque=OPAQUE.get(name))
    assert words in str(caught.value)
    assert caught.value.allowed


# What tensors without values do not show: other operations while a trace is made, gradients, and numbers of the data.
UNSEEN = {
    "a buffer in place carries a gradient",
    "a branch on is_compiling",
    "a branch on is_exporting",
    "a branch on the type of a tensor",
    "try numpy",
    "try a number",
    "a gradient that only eager has",
    "a generator",
}
DRAWN = Random(SEED)


@pytest.mark.parametrize("name", DRAWN.sample([x for x in EQUAL if x not in OPAQUE], 4))
def test_a_large_model_runs_on_fake_tensors_and_that_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "LARGEST_BYTES", -1)
    module = EQUAL[name]()
    captured = capture(module, batch, F.mse_loss)
    assert "fake tensors only, so that no values" in check_training(captured, module, batch, F.mse_loss)


def test_a_large_model_that_reads_numbers_while_it_is_built_is_built_for_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build() -> nn.Module:
        rates = [float(x) for x in torch.linspace(0, 0.1, 2)]  # as vision models do for their dropped paths
        return nn.Sequential(nn.Linear(4, 4), nn.Dropout(rates[1]), nn.Linear(4, 3))

    monkeypatch.setattr(self_check, "LARGEST_BYTES", -1)
    workload = Workload(
        name="mine",
        where="mine.py",
        arguments={},
        functions={"build": build, "batch": batch, "loss": F.mse_loss},
    )
    assert "fake tensors only" in check_training(capture(workload), workload)


@pytest.mark.parametrize("name", DRAWN.sample([x for x in REFUSED if x not in UNSEEN and x not in OPAQUE], 8))
def test_what_a_large_model_leaves_behind_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "LARGEST_BYTES", -1)
    make, words = REFUSED[name]
    with pytest.raises(BadInput) as caught:
        checked(make())
    assert words in str(caught.value) and caught.value.allowed


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_a_state_is_refused(name: str) -> None:
    make, words = LOSSES[name]
    with pytest.raises(BadInput, match=words):
        checked(nn.Linear(4, 3), make())


class Importing(dict[str, int]):
    """What a library hands out as a table, and fills when it is asked."""

    def items(self) -> NoReturn:
        raise ValueError("no such module")

    keys = values = __iter__ = items  # type: ignore[assignment]


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.table = Importing(a=1)
        self.names = collections.OrderedDict(b=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def test_tables_with_code_of_their_own_are_not_asked() -> None:
    assert checked(WithTable()) is not None


def no_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """A root of a mean, a sum, and a norm over the batch are all other losses on parts of a batch."""
    return F.mse_loss(outputs, targets).sqrt()


def counted(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    rows = targets[:, 0] > 0
    return ((outputs - targets).square().mean(1) * rows).sum(), rows.sum()


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x - x.mean(0))
        return y


@pytest.mark.parametrize(
    ("loss", "build", "told"),
    [
        (no_mean, lambda: nn.Linear(4, 3), True),
        (lambda x, y: F.mse_loss(x, y, reduction="sum"), lambda: nn.Linear(4, 3), True),
        (
            lambda x, y: ((x - y).square().mean(1) * (y[:, 0] > 0)).sum() / (y[:, 0] > 0).sum(),
            lambda: nn.Linear(4, 3),
            True,
        ),
        (F.mse_loss, Mixing, True),
        (counted, lambda: nn.Linear(4, 3), False),
        (F.mse_loss, lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()), False),
        (lambda x, y: F.mse_loss(x + torch.randn_like(x), y), lambda: nn.Linear(4, 3), False),
    ],
)
def test_a_loss_that_is_no_mean_over_samples_is_told(
    loss: Callable[..., object], build: Callable[[], nn.Module], told: bool
) -> None:
    """Whoever trains with micro-batches would else train another loss without a word."""
    torch.manual_seed(3)
    module, given = build(), batch(16)
    captured = capture(module, given, loss)
    said = check_training(captured, module, given, loss)
    assert ("it is no mean over samples" in said) == told
