"""Gives fake recurrent layers the reserve that a real kernel keeps for its backward.

Fake tensors do not show that reserve. oneDNN's LSTM leaves its gates and states in one tensor, page after page. torch
makes that tensor empty where nothing is computed. Its size is known from the shapes, to the byte in fp32. Other
precisions take no more. Other devices keep gates and states as well, so the size is an estimate for them. GRUs and
plain recurrent layers run as ordinary operations, whose tensors are seen.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

PAGE_BYTES, FLOAT_BYTES, LINE_FLOATS = 4096, 4, 16


def lstm_reserve_bytes(steps: int, samples: int, inputs: int, hidden: int) -> int:
    """Returns the bytes that oneDNN's LSTM reserves in one layer and direction.

    Args: `steps` is the sequence length; `samples`, `inputs` and `hidden` are sizes of the dims.
    """
    states = 2 * (steps + 1) * samples  # of the layer below and of this one, before and after each step
    parts = [
        steps * samples * _row(4 * hidden),
        steps * samples * _row(hidden),
        *[states * _row(max(inputs, hidden))] * 3,
        *[states * hidden] * 2,
    ]
    return sum(-(-FLOAT_BYTES * floats // PAGE_BYTES) * PAGE_BYTES for floats in parts)


def _row(floats: int) -> int:
    """Returns the floats of a row in whole cache lines; one line more for multiples of 256, so that rows share no
    set.
    """
    whole = -(-floats // LINE_FLOATS) * LINE_FLOATS
    return whole + LINE_FLOATS if whole % 256 == 0 else whole


class Reserves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under a FakeTensorMode that gives recurrent kernels the reserve that they would make.

    A selection by a mask gives all rows, which are the most that it can give: the backward of an embedding with sparse
    gradients leaves its padding out so.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is aten.index.Tensor and len(args[1]) == 1 and args[1][0].dtype == torch.bool:
            given, mask = args[0], args[1][0]
            return given.new_empty((mask.numel(), *given.shape[mask.ndim :]))
        result = function(*args, **(kwargs or {}))
        if function is not aten.mkldnn_rnn_layer.default:
            return result
        output, hidden, cell, empty = result
        steps, samples, inputs = args[0].shape  # whatever `batch_first` says
        size = lstm_reserve_bytes(steps, samples, inputs, output.shape[2])
        return output, hidden, cell, empty.new_empty((size,))
