"""Bytes in use: from storages as they come and go, or on a GPU from its allocator, which sees workspaces too."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(Protocol):
    """While it is on: bytes in use now, and at most since the last restart, above those at its start."""

    @property
    def now(self) -> int: ...
    @property
    def peak(self) -> int: ...
    def restart(self) -> None: ...
    def __enter__(self) -> MemoryMeter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def meter_of(device: torch.device) -> MemoryMeter:
    return CudaBytes(device) if device.type == "cuda" else LiveBytes()


def storage_of(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make while this is on; what a kernel takes for itself it cannot see.

    Args: `known` are tensors that are never counted. Without them, nothing that an operation is given is counted.
    """

    def __init__(self, known: Iterable[Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: set[int] = set()
        self._only_made = known is None
        self._known = {storage_of(tensor) for tensor in known or ()}

    def restart(self) -> None:
        self.peak = self.now

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Counts what was made before, until it is freed."""
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given: set[int] = set()
        if self._only_made:
            given = {storage_of(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and storage_of(tensor) not in given:
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or key in self._known:
            return
        if storage.device.type == "meta" and not self._only_made:
            return  # beside real tensors; alone, fake ones stand for real ones
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


class CudaBytes:
    def __init__(self, device: torch.device) -> None:
        self._device, self._start = device, 0

    @property
    def now(self) -> int:
        return torch.cuda.memory_allocated(self._device) - self._start

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._start

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def __enter__(self) -> CudaBytes:
        self._start = torch.cuda.memory_allocated(self._device)
        self.restart()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass
