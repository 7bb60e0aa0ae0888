"""The reserve of a recurrent kernel, from its shapes and from the kernel itself."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from planner.capture import storage_of
from planner.measure.footprint import Reserves, lstm_reserve_bytes

SHAPES = [(1, 1, 1, 1), (5, 3, 8, 16), (8, 2, 33, 31), (9, 4, 256, 256), (3, 2, 1000, 24), (4, 3, 24, 320)]
SHAPES += [
    tuple(Random(k).choices(range(1, 10), k=2) + Random(-k).choices(range(1, 300), k=2)) for k in range(9)
]


def saved_bytes(module: nn.Module, frames: Tensor) -> int:
    """Of whatever autograd keeps beside what came in and went out."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = module(frames)
    seen = {storage_of(x) for x in (frames, output, *module.parameters())}
    return sum(size for key, size in kept.items() if key not in seen)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_reserve_of_an_lstm_is_that_of_its_kernel(
    shape: tuple[int, int, int, int], batch_first: bool
) -> None:
    steps, samples, inputs, hidden = shape
    size = (samples, steps, inputs) if batch_first else (steps, samples, inputs)
    module = nn.LSTM(inputs, hidden, batch_first=batch_first)
    real = saved_bytes(module, torch.randn(size, requires_grad=True))
    assert real >= lstm_reserve_bytes(steps, samples, inputs, hidden) > 16 * steps * samples * hidden
    with FakeTensorMode(), Reserves():
        module = nn.LSTM(inputs, hidden, batch_first=batch_first)
        counted = saved_bytes(module, torch.randn(size, requires_grad=True))
    assert counted == real


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_every_kind_keep_what_was_counted(kind: type[nn.RNNBase], layers: int) -> None:
    def module() -> nn.Module:
        return kind(12, 20, num_layers=layers, bidirectional=layers == 2)

    real = saved_bytes(module(), torch.randn(7, 3, 12, requires_grad=True))
    with FakeTensorMode(), Reserves():
        assert saved_bytes(module(), torch.randn(7, 3, 12, requires_grad=True)) == real
