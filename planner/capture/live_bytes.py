"""Watches the storages of tensors while operations run: how many bytes they take, and which pass has made them.

Bytes in use are counted by storages as they come and go, or on a GPU by its allocator, which sees workspaces too.

`Across` sees which tensors flow from one forward pass into the next, wherever Python keeps them meanwhile. A pass has
a state where it reads what an earlier pass computed from the batch, from trained parameters or from chance. It also
has one where it writes into a tensor that is older than itself. Exempt is what a plan carries: parameters, buffers,
and the constants that the captured graph writes. A tensor that depends on none of these is a table that was kept,
such as a mask, and the same in every pass.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeGuard

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from planner.workload import is_users


class MemoryMeter(Protocol):
    """A counter of bytes above those at its start: in use now, and at most since the last restart, while it is on."""

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
    """Returns the meter for a device: its allocator on a GPU, storages elsewhere.

    Args: `device` is where the tensors to count are made.
    """
    return CudaBytes(device) if device.type == "cuda" else LiveBytes()


def storage_of(tensor: Tensor) -> int:
    """Returns a key of the storage that a tensor lies in, which views of one tensor share; of a sparse one, its values.

    Returns: a number that is free for another storage once this one is gone.
    """
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
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
        given = list(known or ())
        self._known = {storage_of(tensor) for tensor in given}
        for tensor in given:  # once it is gone, its key is free for another one, which counts
            storage = tensor.untyped_storage()
            weakref.finalize(storage, self._known.discard, storage._cdata).atexit = False

    def restart(self) -> None:
        """Sets the peak to the bytes in use now."""
        self.peak = self.now

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Counts tensors that were made before, until they are freed.

        Args: a storage among those of `tensors` counts once.
        """
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given: set[int] = set()
        if self._only_made:
            given = {storage_of(x) for x in tree_leaves((args, kwargs)) if _has_storage(x)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if _has_storage(tensor) and storage_of(tensor) not in given:
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


def counted_here() -> Callable[[Tensor], None]:
    """Returns what counts a tensor that another thread makes, for all meters of storages that are on in this one."""
    meters = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, LiveBytes)]

    def count(tensor: Tensor) -> None:
        for meter in meters:
            meter.adopt([tensor])

    return count


class CudaBytes:
    """A meter of what torch's allocator has given out on one GPU."""

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


@dataclass(frozen=True, slots=True)
class LeftUse:
    """A use of a tensor that an earlier pass, or the time before all passes, has left."""

    storage: int
    written: bool
    line: str  # of the user's code


@dataclass(frozen=True, slots=True)
class _Made:
    storage: StorageWeakRef
    step: int
    changing: bool  # depends on the batch, on what trains or is written, or on chance
    derived: bool = False  # depends on what an earlier pass has left


class Across(TorchDispatchMode):
    """Watches forward passes while it is entered, once for each; `crossing` is the first that it met."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.crossing: LeftUse | None = None
        self._step = -1
        self._made: dict[int, _Made] = {}
        self._carried: dict[int, bool] = {}  # storages, and whether what they hold changes
        self.operations: list[str] = []  # of the latest pass, those whose results change

    def begin(self, carried: Iterable[tuple[Tensor, bool]], batch: object) -> None:
        """Begins another pass.

        Args: `carried` has all tensors that a plan carries, and whether their values change; `batch` is what the pass
            is given.
        """
        carried = [(x, changing) for x, changing in carried if _has_storage(x)]
        self._step += 1
        self.operations = []
        self._carried = {storage_of(x): changing for x, changing in carried}
        self._carried |= {storage_of(x): True for x in tree_leaves(batch) if _has_storage(x)}
        for x, changing in carried:  # one that is carried no more is left behind
            self._note(x, changing)

    def _note(self, tensor: Tensor, changing: bool, derived: bool = False) -> None:
        storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._made[storage_of(tensor)] = _Made(storage, self._step, changing, derived)

    def _origin(self, tensor: Tensor) -> _Made | None:
        made = self._made.get(storage_of(tensor))
        gone = made is None or made.storage.expired()  # type: ignore[no-untyped-call]
        return None if gone else made

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Runs an operation and notes what it used and made.

        Args: as torch calls it.
        """
        given = [x for x in tree_leaves((args, kwargs)) if _has_storage(x)]
        written = {id(x) for x in _written(func, args, kwargs or {})}
        used = [self._used(x, id(x) in written) for x in given]
        changing = any(way[0] for way in used) or torch.Tag.nondeterministic_seeded in getattr(
            func, "tags", ()
        )
        derived = any(way[1] for way in used)
        made = func(*args, **(kwargs or {}))
        if changing and any(map(_has_storage, tree_leaves(made))):
            self.operations.append(f"{func} {[x if isinstance(x, int | float) else None for x in args]}")
        for y in (*tree_leaves(made), *(x for x in given if id(x) in written)):
            if _has_storage(y) and storage_of(y) not in self._carried:
                before = self._origin(y)
                if before is None:
                    self._note(y, changing, derived)
                elif before.step == self._step:
                    self._note(y, changing or before.changing, derived or before.derived)
        return made

    def _used(self, tensor: Tensor, written: bool) -> tuple[bool, bool]:
        """Notes a use of a tensor that is not of this pass; returns whether it changes, and whether it was left."""
        if storage_of(tensor) in self._carried:
            return self._carried[storage_of(tensor)], False
        origin = self._origin(tensor)
        if origin is None:
            older, changing, derived = True, False, False
        else:
            older, changing, derived = origin.step < self._step, origin.changing, origin.derived
        if older and (written or changing or derived) and self.crossing is None:
            self.crossing = LeftUse(storage_of(tensor), written, _line())
        return changing, derived or (older and origin is not None)


def _has_storage(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _written(func: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Tensor]:
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):  # type: ignore[attr-defined]
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [x for x in tree_leaves(given) if _has_storage(x)]
    return found


def _line() -> str:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def settle_memory() -> None:
    """Settles the memory of a process that is about to run steps: a rank, or one that measures what ranks do.

    The objects of the capture, about a million, would pause steps where they stayed in garbage collection. What loading
    has freed goes back to the machine; the C library of Linux would keep it. What steps free stays with the process for
    the next ones: each page from the machine is filled with zeros first, a quarter of a step of small convolutions.
    Blocks of 32 MiB and more go back at once, as they lie nowhere near each other. An environment that sets the
    allocator itself is left alone.
    """
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):  # other C libraries have none
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
            library.mallopt(M_MMAP_THRESHOLD, 2**25)
            library.mallopt(M_TRIM_THRESHOLD, 2**28)
