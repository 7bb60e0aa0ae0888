"""A capture says for which batch sizes it holds, and is made around those that are asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.capture import capture
from planner.errors import BadInput


class Sized(nn.Module):
    """A layer whose forward asks for the size of the batch."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.norm, self.how = nn.Linear(4, 3), nn.BatchNorm1d(3), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def batch(n: int) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 4), torch.rand(n, 3)


def contiguous_from_64(self: Sized, x: Tensor) -> Tensor:
    return self.layer(x.clone() if x.shape[0] >= 64 else x)


def special_at_ten(self: Sized, x: Tensor) -> Tensor:
    return self.layer(x) * (2 if x.shape[0] == 10 else 1)


def at_least_ten(self: Sized, x: Tensor) -> Tensor:
    assert x.shape[0] >= 10
    return self.layer(x)


def doubled_alone(self: Sized, x: Tensor) -> Tensor:
    return self.layer(x) * 2 if x.shape[0] == 1 else self.layer(x)


def normalised(self: Sized, x: Tensor) -> Tensor:
    return self.norm(self.layer(x))


def repeated_for_several(self: Sized, x: Tensor) -> Tensor:
    """Repeats places for each sample but a lone one, as models of transformers do, and shifts rows as their losses do."""
    places = torch.arange(4.0).unsqueeze(0)
    if x.shape[0] != places.shape[0]:
        places = places.expand(x.shape[0], -1)
    return self.layer(F.pad(x * places, (0, 1))[:, 1:].contiguous())


@pytest.mark.parametrize(
    ("forward", "asked", "least", "most"),
    [
        (contiguous_from_64, (1, 2, 4), 1, 63),
        (contiguous_from_64, (64, 128), 64, 0),
        (special_at_ten, (1, 4), 1, 9),
        (at_least_ten, (16, 32), 10, 0),
        (doubled_alone, (1, 2), 2, 0),
        (normalised, (1, 2), 2, 0),
        (repeated_for_several, (1, 2), 1, 0),
        (lambda self, x: self.layer(x), (1, 2), 1, 0),
    ],
)
def test_a_model_is_captured_for_the_range_of_batches_that_its_branches_leave(
    forward: Callable[..., Tensor], asked: tuple[int, ...], least: int, most: int
) -> None:
    graph = capture(Sized(forward), batch, F.mse_loss, micro=asked).graph
    assert graph.symbolic_batch
    assert (graph.least_micro, graph.most_micro) == (least, most)


def test_what_runs_for_one_sample_alone_is_never_taken_from_larger_batches() -> None:
    several = capture(Sized(doubled_alone), batch, F.mse_loss, micro=(1, 2, 4))
    assert list(several.left_out) == [1] and "with one sample" in several.left_out[1]
    alone = capture(Sized(doubled_alone), batch, F.mse_loss, micro=1).graph
    assert alone.serves(1) and not alone.serves(2)
    assert "aten.mul" in alone.layers[0].operations


def test_a_batchnorm_of_one_value_leaves_out_that_micro_batch_and_says_which_remain() -> None:
    found = capture(Sized(normalised), batch, F.mse_loss, micro=(1, 2, 4))
    assert "Expected more than 1 value per channel" in found.left_out[1]
    with pytest.raises(BadInput, match="2 or more"):
        capture(Sized(normalised), batch, F.mse_loss, micro=1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.a(x) / len(x)
        return made


def test_a_size_that_becomes_a_number_is_said_with_its_line() -> None:
    file, line = inspect.getsourcefile(Counts), inspect.getsourcelines(Counts.forward)[1] + 1
    found = capture(Counts(), batch, F.mse_loss, micro=(1, 2))
    assert not found.graph.symbolic_batch and f"{file}:{line} makes a number" in found.left_out[2]
    assert f"{file}:{line}" in capture(Counts(), batch, F.mse_loss, micro=2).alone
