"""A world of ranks in which only one rank exists. What others would send is made up, and what is sent to them
is dropped.

The rank's own calls of torch.distributed run as they are, with their buffers and handles. Only the process
group behind them is another, which answers at once. A sum leaves a tensor as it is, as if all other ranks had
added nothing. Parts that come from other ranks are zeros.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    ProcessGroup,
    Store,
    _create_work_from_future,
)
from torch.futures import Future

from planner.errors import BadInput
from runtime.world import World

NAME = "rehearsal"
LEAST, MOST = 0.1, 1.0  # of made-up numbers: a logarithm, a root and a quotient of them are finite


def fill(tensor: Tensor) -> Tensor:
    """Fills a tensor with made-up contents and returns it.

    Args: `tensor` gets small positive numbers; True where it is bool, and 0 where it is of integers.
    """
    if tensor.is_floating_point():
        return tensor.uniform_(LEAST, MOST)
    return tensor.fill_(tensor.dtype == torch.bool)


def _done(tensors: object) -> dist.Work:
    future: Future[object] = Future()
    future.set_result(tensors)
    work: dist.Work = _create_work_from_future(future)
    return work


class _Silence(ProcessGroup):
    """A process group whose other members are always there and never send anything."""

    def getBackendName(self) -> str:
        return NAME

    def send(self, tensors: list[Tensor], target: int, tag: int) -> dist.Work:
        return _done(tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> dist.Work:
        for tensor in tensors:
            fill(tensor)
        return _done(tensors)

    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], options: object = None
    ) -> dist.Work:
        return _done(tensors)

    def broadcast(  # type: ignore[override]
        self, tensors: list[Tensor], options: object = None
    ) -> dist.Work:
        return _done(tensors)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], own: list[Tensor], options: object = None
    ) -> dist.Work:
        """Fills the other ranks' parts with made-up numbers."""
        for part in outputs[0]:
            fill(part)
        outputs[0][self.rank()].copy_(own[0])
        return _done(outputs)

    def alltoall_base(
        self, output: Tensor, sent: Tensor, sizes: list[int], sent_sizes: list[int], options: object = None
    ) -> dist.Work:
        """Copies this rank's own part. The other ranks' parts are zeros, which add nothing."""
        parts, own = torch.split(output.zero_(), sizes), torch.split(sent, sent_sizes)
        parts[self.rank()].copy_(own[self.rank()])
        return _done([output])


class _Everybody(Store):
    """A store that says of every group that all of its members have come."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks

    def add(self, key: str, amount: int) -> int:
        return self._ranks

    def set(self, key: str, value: str) -> None:
        pass

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass


@dataclass(frozen=True)
class AloneWorld(World):
    """The world of a rank that runs alone."""

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Returns a group of ranks, None where this rank is no member. Only groups of this rank are made.

        Args: `ranks` are the members.
        """
        return super().new_group(ranks) if self.rank in ranks else None


def _silence(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return _Silence(rank, size)  # type: ignore[call-arg]


@contextmanager
def world_of(rank: int, size: int, device: torch.device) -> Iterator[AloneWorld]:
    """Makes the world of a rank that runs alone, and ends it with the context.

    Args: `size` is the number of ranks that there seem to be.
    Raises: BadInput where this process is already a rank of a run.
    """
    if dist.is_initialized():
        raise BadInput(
            "this process is a rank of a run already", where="rehearse", allowed="a process of its own"
        )
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _silence, devices=["cpu", "cuda"])
    hook = sys.excepthook  # torch puts one of its own there, and leaves it
    dist.init_process_group(NAME, rank=rank, world_size=size, store=_Everybody(size))
    try:
        yield AloneWorld(rank, size, device, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
