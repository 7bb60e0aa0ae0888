"""A conversion as a call in a stage's graph: the tensor takes its steps forward, and the gradient takes them back.

A parameter that rests in parts is whole only while an operation runs. What autograd would keep of it for the backward
pass is let go, and gathered again when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from planner.layout import Passage
from runtime.layout.moves import CutGroup, moved


@dataclass(frozen=True)
class Convert:
    """The steps that bring a tensor to another layout."""

    steps: tuple[Passage, ...]
    group: CutGroup

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = passed(x, step, self.group)
        return x


class _Context(FunctionCtx):
    step: Passage
    group: CutGroup


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, step: Passage, group: CutGroup) -> Tensor:
        ctx.step, ctx.group = step, group
        found = moved(x, step.forward, step.source, step.target, step.axis, group)
        return x.view_as(x) if found is x else found

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        step = ctx.step
        back = moved(grad, step.backward, step.target.dual(), step.source.dual(), step.axis, ctx.group)
        return back, None, None


def passed(x: Tensor, step: Passage, group: CutGroup) -> Tensor:
    """Takes one step of a conversion, differentiably.

    Args: `x` is this rank's part before it.
    Returns: this rank's part behind it.
    """
    if not x.requires_grad:
        return moved(x, step.forward, step.source, step.target, step.axis, group)
    result: Tensor = _Passed.apply(x, step, group)  # type: ignore[no-untyped-call]
    return result


class RestingParts(Protocol):
    """The parameters of a stage that are here only while they are used, where replicas share them."""

    def pack(self, tensor: Tensor) -> Any: ...
    def unpack(self, kept: Any) -> Tensor: ...


class _Again(NamedTuple):
    """What is kept in the place of a gathered parameter, or of a view of one."""

    gathered: Callable[[], Tensor]  # gathers it once more
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass
class GatheredWeights:
    """The gathered parameters of a stage that are there at the moment."""

    here: dict[int, tuple[StorageWeakRef, Callable[[], Tensor]]] = field(default_factory=dict)
    beside: RestingParts | None = None  # who keeps what rests in parts, where that is not always here

    def note(self, whole: Tensor, again: Callable[[], Tensor]) -> None:
        """Takes note of a parameter that was gathered.

        Args: `again` gathers it once more, when all ranks of the group do.
        """
        self.here = {key: x for key, x in self.here.items() if not x[0].expired()}  # type: ignore[no-untyped-call]
        storage = whole.untyped_storage()
        self.here[storage._cdata] = StorageWeakRef(storage), again  # type: ignore[no-untyped-call]

    @contextmanager
    def not_kept(self) -> Iterator[None]:
        """Returns a context in which autograd keeps no gathered parameter."""
        with saved_tensors_hooks(self._pack, self._unpack):
            yield

    def resting(self, parameter: Tensor) -> Callable[[], Tensor]:
        """Returns what gives the parts of a parameter once more, also where they are let go meanwhile."""
        beside = self.beside
        if beside is None:
            return parameter.detach
        kept = beside.pack(parameter.detach())
        return lambda: beside.unpack(kept)

    def _pack(self, x: Tensor) -> Any:
        known = self.here.get(x.untyped_storage()._cdata)
        if known is not None and not known[0].expired():  # type: ignore[no-untyped-call]
            return _Again(known[1], x.shape, x.stride(), int(x.storage_offset()))
        own = x.detach()  # the tensor itself would keep itself alive, where it is a result
        return own if self.beside is None else self.beside.pack(own)

    def _unpack(self, kept: Any) -> Tensor:
        if isinstance(kept, _Again):
            return kept.gathered().as_strided(kept.shape, kept.stride, kept.offset)
        return kept if isinstance(kept, Tensor) or self.beside is None else self.beside.unpack(kept)


@dataclass(frozen=True)
class GatherParameter:
    """Brings a parameter from the parts in which it rests to how operations read it."""

    convert: Convert
    gathered: GatheredWeights

    def __call__(self, parameter: Tensor) -> Tensor:
        resting = self.gathered.resting(parameter)

        def again() -> Tensor:
            with torch.no_grad():
                return self.convert(resting())

        whole = self.convert(parameter)
        if torch.is_grad_enabled():
            self.gathered.note(whole, again)
        return whole
