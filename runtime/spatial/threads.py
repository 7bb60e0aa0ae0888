"""How many threads of the host compute a box: so many that its last bit does not depend on the number of workers.

Several workers share the cores of a machine, so each has fewer threads than one alone. Convolutions in single precision
give the same bits on any number of threads (`InferredConvolutions`). Libraries may share the long sums of other matrix
products among threads; a box with such products is computed on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import torch

from planner.capture import Forward

PRODUCTS: Final = ("linear", "mm", "matmul", "attention", "lstm", "gru", "rnn")  # of matrices, in names


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Lets torch use so many threads of the host, while the `with` block lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def steady(forward: Forward, device: torch.device) -> AbstractContextManager[None]:
    """Returns the block in which a model gives the same bits whatever the number of threads before.

    Args: `forward` is the model, `device` computes it.
    """
    names = {x.operation for x in forward.operations}
    products = any(word in name for name in names for word in PRODUCTS)
    convolves = any("conv" in name for name in names) and forward.dtype != torch.float32
    return threads(1) if device.type == "cpu" and (products or convolves) else nullcontext()
