"""A sample meets the same random numbers, whatever the micro-batches, the parts and the order of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import Captured, capture
from planner.capture.stage_modules import whole
from planner.spatial import NONE, OTHERWISE
from runtime.draws import Draw, Keys, draw_of, key_random_operations, random_operations

DROPOUT, CHANNELS = torch.ops.aten.dropout.default, torch.ops.aten.feature_dropout.default
BATCH = 8


def of(keys: Keys | None = None, dim: int = 0, rows: int = 1, operation: int = 5) -> Draw:
    return Draw(keys or Keys(2, torch.device("cpu")), operation, DROPOUT, dim, rows)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_mask_of_a_sample_is_the_same_in_micro_batches_of_any_size(dim: int, rows: int) -> None:
    shape = [4, 5, 6]
    shape[dim] = BATCH * rows
    x, made = torch.randn(shape), []
    for micro in (1, 2, 4, BATCH):
        keys, parts = Keys(2, torch.device("cpu")), []
        for keys.micro, part in enumerate(x.split(micro * rows, dim)):
            parts.append(of(keys, dim, rows)(part, 0.4, True))
        made.append(torch.cat(parts, dim))
    assert all(torch.equal(made[0], other) for other in made)
    assert len({tuple(part.ne(0).flatten().tolist()) for part in made[0].split(rows, dim)}) == BATCH


def test_micro_batches_of_later_shards_and_replicas_go_on_counting_samples() -> None:
    x, keys = torch.randn(BATCH, 50), Keys(2, torch.device("cpu"))
    whole = of(keys)(x, 0.4, True)
    for first in range(4):
        for micro in range(4 - first):
            here = 2 * (first + micro)
            own = of(Keys(2, torch.device("cpu"), micro=micro, first=first))(x[here : here + 2], 0.4, True)
            assert torch.equal(own, whole[here : here + 2])


Runs = list[tuple[int, int]]
PARTS: dict[str, dict[int, Runs]] = {
    "samples": {0: [(2, 5)]},
    "rows": {1: [(3, 7)]},
    "columns in blocks": {2: [(0, 2), (6, 8)]},
    "one row and one sample": {0: [(4, 5)], 1: [(6, 7)]},
    "everything": {0: [(1, 4)], 1: [(0, 2)], 2: [(3, 4), (9, 12)]},
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=list(PARTS))
@pytest.mark.parametrize(("dim", "rows"), [(0, 1), (1, 1), (0, 2), (2, 3), (NONE, 1), (OTHERWISE, 1)])
def test_a_part_meets_the_numbers_that_the_whole_has_there(
    parts: dict[int, Runs], dim: int, rows: int
) -> None:
    whole = torch.randn(6, 8, 12)
    own = whole, of(Keys(2, torch.device("cpu"), micro=3), dim, rows)(whole, 0.4, True)
    x, expected = own
    for at, runs in parts.items():
        x, expected = (
            torch.cat([y[(slice(None),) * at + (slice(*run),)] for run in runs], at) for y in (x, expected)
        )
    given = {at: (whole.shape[at], runs) for at, runs in parts.items()}
    found = of(Keys(2, torch.device("cpu"), micro=3), dim, rows).dropped(x, 0.4, given)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
def test_the_order_of_memory_changes_no_number_and_is_kept_as_torch_keeps_it(order: tuple[int, ...]) -> None:
    plain = torch.randn(3, 4, 5, 6)
    x = plain.permute(order).contiguous().permute([order.index(i) for i in range(4)])
    found = of()(x, 0.4, True)
    assert torch.equal(found, of()(plain, 0.4, True))
    assert found.stride() == torch.dropout(x, 0.4, True).stride()


def test_whole_channels_are_dropped_by_sample() -> None:
    x = torch.randn(BATCH, 6, 4, 4)
    made = []
    for micro in (2, BATCH):
        keys = Keys(2, torch.device("cpu"))
        parts = [
            Draw(keys, 1, CHANNELS, 0, 1)(part, 0.5, True) for keys.micro, part in enumerate(x.split(micro))
        ]
        made.append(torch.cat(parts))
    assert torch.equal(*made)
    gone = made[0].eq(0)
    assert torch.equal(gone.all(-1).all(-1), gone.any(-1).any(-1)) and gone.any() and not gone.all()


def test_the_gradient_goes_where_the_numbers_went() -> None:
    x = torch.randn(4, 30, requires_grad=True)
    made = of()(x, 0.4, True)
    made.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * x, made)


class Net(nn.Module):
    """Draws by `draw` between two layers, whose dimension of samples may be another one than the first."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.draw = nn.Linear(6, 6), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.first(x))


def captured_with(draw: Callable[[Tensor], Tensor]) -> Captured:
    def batch(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4, 6), torch.randn(n, 4, 6)

    return capture(Net(draw).double(), batch=lambda n: tuple(x.double() for x in batch(n)), loss=F.mse_loss)


def attended(x: Tensor) -> Tensor:
    y = x.unflatten(-1, (2, 3)).transpose(1, 2)
    return F.scaled_dot_product_attention(y, y, y, dropout_p=0.4).transpose(1, 2).flatten(2)


def turned(x: Tensor) -> Tensor:
    return F.dropout(x.transpose(0, 1), 0.4).transpose(0, 1)


def flattened(x: Tensor) -> Tensor:
    return F.dropout(x.flatten(0, 1), 0.4).view(x.shape)


BY_SAMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout with samples second": turned,
    "dropout of all rows in one": flattened,
    "dropout of channels": lambda x: F.dropout1d(x, 0.4),
    "attention": attended,
    "noise": lambda x: x + torch.randn_like(x),
    "noise of a size": lambda x: x + torch.rand(x.shape[0], 1, 6, dtype=x.dtype),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.4, True),
    "random slopes": lambda x: F.rrelu(x, training=True),
    "a mask of its own": lambda x: x * torch.bernoulli(torch.full_like(x, 0.6)),
    "a mask for all samples": lambda x: x * F.dropout(torch.ones(4, 6, dtype=x.dtype), 0.4),
    "noise for all samples": lambda x: x * torch.rand(6, dtype=x.dtype),
}


@pytest.mark.parametrize("name", BY_SAMPLE)
def test_a_models_loss_does_not_change_with_the_size_of_micro_batches(name: str) -> None:
    torch.manual_seed(0)
    captured = captured_with(BY_SAMPLE[name])
    values = captured.batch_values(torch.randn(BATCH, 4, 6).double(), torch.randn(BATCH, 4, 6).double())
    initial = {row.name: torch.randn(row.shape, dtype=torch.float64) for row in captured.graph.parameters}
    made = {}
    for step, micro in ((1, 1), (1, 2), (1, 4), (1, BATCH), (2, BATCH)):
        module, keys = whole(captured), Keys(0, torch.device("cpu"), step)
        module.materialise(initial)
        key_random_operations(module, keys, range(len(random_operations(module))))
        losses = []
        for keys.micro in range(BATCH // micro):
            own = {key: x[keys.micro * micro :][:micro] for key, x in values.items()}
            losses.append(float(module(own)["loss:0"].detach()))
        made[step, micro] = sum(losses) / len(losses)
    *first, second = made.values()
    assert first == pytest.approx([first[0]] * 4, rel=1e-13)
    assert second != pytest.approx(first[0], rel=1e-6)


def test_a_recurrent_layer_draws_for_a_whole_micro_batch() -> None:
    """It computes all samples at once, and is not taken apart for its dropout."""
    layer = nn.LSTM(6, 6, 2, batch_first=True, dropout=0.4).double()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.layer(x)[0]
            return made

    captured = capture(
        Net(), batch=lambda n: (torch.randn(n, 4, 6).double(), torch.randn(n, 4, 6).double()), loss=F.mse_loss
    )
    module = whole(captured)
    module.materialise(
        {row.name: torch.randn(row.shape, dtype=torch.float64) for row in captured.graph.parameters}
    )
    key_random_operations(module, Keys(0, torch.device("cpu")), range(len(random_operations(module))))
    assert not any(draw_of(module._run, node) for node in module._run.graph.nodes)
