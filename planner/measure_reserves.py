"""What kernels keep for their backward that fake tensors do not show: the reserve of a recurrent layer.

oneDNN's LSTM leaves its gates and states in one tensor, page after page; torch makes that tensor empty where nothing
is computed. Its size is known from the shapes, to the byte in fp32. Other precisions take no more, and other
devices keep gates and states as well: there it is an estimate. GRUs and plain recurrent layers run as ordinary
operations, whose tensors are seen.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

PAGE_BYTES, FLOAT_BYTES, LINE_FLOATS = 4096, 4, 16


def lstm_reserve_bytes(steps: int, samples: int, inputs: int, hidden: int) -> int:
    """Of one layer in one direction."""
    states = 2 * (steps + 1) * samples  # of the layer below and of this one, before and after each step
    parts = [
        steps * samples * _row(4 * hidden),
        steps * samples * _row(hidden),
        *[states * _row(max(inputs, hidden))] * 3,
        *[states * hidden] * 2,
    ]
    return sum(_pages(FLOAT_BYTES * floats) for floats in parts)


def _row(floats: int) -> int:
    """In whole cache lines, of which rows of a power of two take one more, so that they do not share a set."""
    whole = -(-floats // LINE_FLOATS) * LINE_FLOATS
    return whole + LINE_FLOATS if whole % 256 == 0 else whole


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class Reserves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under a FakeTensorMode, gives recurrent kernels the reserve that they would make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if function is not aten.mkldnn_rnn_layer.default:
            return result
        output, hidden, cell, empty = result
        steps, samples, inputs = args[0].shape  # whatever `batch_first` says
        size = lstm_reserve_bytes(steps, samples, inputs, output.shape[2])
        return output, hidden, cell, empty.new_empty((size,))
