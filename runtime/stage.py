"""What the interpreter asks of a stage, whatever is in it: real layers, or a sleep of the planned length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from planner.errors import ShardwrightError

Tensors = Mapping[str, Tensor]


class NotFinite(ShardwrightError):
    """NaN or infinity where a training cannot go on, with where it was first seen."""


class Stage(Protocol):
    """One stage of one pipe on one rank. Tensors go by the names of their Values."""

    def forward(self, micro: int, inputs: Tensors) -> dict[str, Tensor]:
        """Outputs without a graph; the stage keeps what its backward needs under `micro`."""

    def backward(self, micro: int, grads: Tensors) -> dict[str, Tensor]:
        """From the gradients of outputs, and of inputs that later stages read too, to those of its inputs."""

    def input_half(self, micro: int, grads: Tensors) -> dict[str, Tensor]: ...

    def weight_half(self, micro: int) -> None: ...

    def recompute(self, micro: int) -> None: ...
