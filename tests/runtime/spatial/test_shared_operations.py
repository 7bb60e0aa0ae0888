"""Every operation is exact on shares of the samples, or refused by name before anything runs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from planner.capture import capture
from planner.capture.stage_modules import whole
from planner.spatial import Grids, NoRule
from runtime.spatial.analyse import analyse
from tests.runtime.spatial.cases import CASES, CONV, Apply, Case
from tests.runtime.spatial.training import Job, alone, on_grids

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
SAMPLES, RANKS, SIZES = 6, 2, (8, 6, 6)
EXACT = 1e-12


class Behind(nn.Module):
    """Behind a convolution, and a layer of its own, from which on samples are shared."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        channels = case.channels[0]
        self.front = CONV[case.dims](channels, channels, 3, padding=1)
        self.scale = Scale()
        self.module = case.build()

    def forward(self, first: Tensor, *rest: Tensor) -> object:
        return self.module(self.scale(self.front(first)), *rest)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.25))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def loss(outputs: object, targets: Tensor) -> Tensor:
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return sum((part.double() * 1.5 + 0.25).square().mean() for part in parts)  # type: ignore[no-any-return]


def given(case: Case) -> Job:
    torch.manual_seed(1)
    module = Behind(case).double()
    shapes = [shape[1:] for shape in case.shapes(SIZES)]

    def batch(n: int) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(torch.randn(n, *shape, dtype=torch.float64) for shape in shapes), torch.zeros(n)

    captured = capture(module, batch, loss)
    values = captured.batch_values(*batch(SAMPLES))
    start = {name: tensor.clone() for name, tensor in captured.initial(module).items()}
    return Job(captured, start, values, steps=2)


def difference(case: Case) -> float:
    """NoRule where it is refused."""
    job = given(case)
    grids = Grids(RANKS, (RANKS,), shares="scale")
    assert any(done.shared for done in analyse(whole(job.captured), (RANKS,), None, (), grids).segment.placed)
    right, worst = alone(job), 0.0
    for mine in on_grids(job, grids):
        pairs = [(torch.tensor(mine.losses), torch.tensor(right.losses))]
        pairs += [(mine.tensors[name], x) for name, x in right.tensors.items()]
        for have, want in pairs:
            apart = (have.double().nan_to_num(7.0) - want.double().nan_to_num(7.0)).abs().max()
            worst = max(worst, float(apart / max(1.0, float(want.double().nan_to_num(7.0).abs().max()))))
    return worst


SAMPLE = random.Random(11).sample(sorted(CASES), 28)
FOUND = (
    "dropout2d",
    "batchnorm2d",
    "instancenorm2d",
    "groupnorm 2",
    "cross entropy weighted",
    "dice",
    "attention over space",
)


@pytest.mark.parametrize("name", sorted({*SAMPLE, *(name for name in FOUND if name in CASES)}))
def test_an_operation_on_shares_equals_one_process_or_is_refused(name: str) -> None:
    try:
        found = difference(CASES[name])
    except NoRule as refused:
        assert "on a share of the samples: " in str(refused) or "samples are not shared: " in str(refused)
    else:
        assert found < EXACT


def _attention_over_samples(x: Tensor) -> Tensor:
    rows = x.flatten(1)[None, None]
    return nn.functional.scaled_dot_product_attention(rows, rows, rows)


MIXING: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "turned round": (lambda x: x.flip(0), "aten.flip .* picks among samples"),
    "rolled": (lambda x: x.roll(4, 0), "aten.roll .* picks among samples"),
    "summed up one by one": (lambda x: x.cumsum(0), "aten.cumsum .* no rule"),
    "a few of them": (lambda x: x[:2], "aten.slice .* picks among samples"),
    "the first taken away": (lambda x: x - x[0], "aten.select .* picks among samples"),
    "a few together": (lambda x: x.reshape(2, -1), "captured for one batch alone"),
    "with all others": (lambda x: x.flatten(1) @ x.flatten(1).t(), "captured for one batch alone"),
    "weighed against each other": (lambda x: x.softmax(0), "aten.softmax .* sums along a dimension"),
    "spread": (lambda x: x / x.std(0), "aten.std .* is taken over samples"),
    "with the largest's number": (lambda x: x.max(0).values, "aten.max .* picks along a dimension"),
    "doubled": (lambda x: torch.cat([x, x]), "aten.cat .* picks among samples"),
    "padded": (lambda x: nn.functional.pad(x, (0, 0, 0, 0, 0, 0, 1, 0)), "aten.pad, is no multiple of the batch"),
    "attending to each other": (_attention_over_samples, "aten.scaled_dot_product_attention .* come first"),
    "as columns": (lambda x: x.flatten().view(-1, x.shape[0]).t(), "aten.view .* mixes samples"),
    "twice": (lambda x: x.repeat(2, 1, 1, 1), "aten.repeat .* repeats a dimension"),
    "channels for samples": (lambda x: nn.functional.avg_pool2d(x.transpose(0, 1), 2), "aten.avg_pool2d .* come first"),
}  # fmt: skip
TOGETHER: dict[str, Callable[[Tensor], object]] = {
    "their mean taken away": lambda x: x - x.mean(0, keepdim=True),
    "over their norm": lambda x: x / torch.linalg.vector_norm(x),
    "over the largest of all": lambda x: x / x.abs().amax((0, 2, 3), keepdim=True),
    "as matrices": lambda x: x @ x.transpose(2, 3),
    "behind each other": lambda x: x.transpose(0, 1).reshape(x.shape[1], -1, 3).sum(2),
    "one by one": lambda x: torch.stack([each.sum((1, 2)) for each in x.unbind(1)], 1),
    "with a mask of their number": lambda x: x + torch.arange(x.shape[0], dtype=x.dtype).view(-1, 1, 1, 1),
    "attending within": lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_samples_is_refused_by_name(name: str) -> None:
    function, why = MIXING[name]
    with pytest.raises(NoRule, match=why):
        difference(Case(name, lambda: Apply(function), (4,), 2))


@pytest.mark.parametrize("name", TOGETHER)
def test_what_sums_over_samples_or_leaves_them_apart_is_exact(name: str) -> None:
    assert difference(Case(name, lambda: Apply(TOGETHER[name]), (4,), 2)) < EXACT
