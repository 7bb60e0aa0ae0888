"""What a rank holds: bytes that stay, and the peak of what a step makes on top.

On the host a dispatch mode follows every storage from its making to its end, which is slow and therefore done in one
step only; a GPU's allocator counts by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that operations make while it is entered, until they are freed."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or key in self._known:
            return
        self.now += size
        self.peak = max(self.peak, self.now)

        def freed(_: object) -> None:
            self._seen.pop(key, None)
            self.now -= size

        self._seen[key] = weakref.ref(storage, freed)


def static_bytes(tensors: Iterable[Tensor]) -> int:
    """Each storage once, however many views of it there are."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
