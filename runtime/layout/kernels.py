"""Operations that on parts are not torch's own with the same arguments: local sizes, and the few special factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.capture import Target, named_arguments
from planner.layout import LocalOperation
from runtime.draws import Draw
from runtime.layout.moves import CutGroup
from runtime.layout.ring import Ring, ring_attention
from runtime.spatial import call_named


@dataclass(frozen=True)
class LocalCall:
    """One operation on this rank's parts, as a call in a stage's graph."""

    target: Target
    placed: LocalOperation
    group: CutGroup
    draw: Draw | None = None  # how it draws random numbers, where it does by sample

    def __call__(self, *args: object, **kwargs: object) -> object:
        arguments = named_arguments(self.target, args, kwargs)
        kind = self.placed.operation.operation
        if kind in SIZED:
            return SIZED[kind](self, arguments)
        axes = sorted(self.placed.kernels)
        return KERNELS[self.placed.kernels[axes[0]]](self, arguments)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Returns the shape of this rank's part of a result."""
        return self.placed.outputs[index].local_shape(self.group.position, self.group.mesh)

    def axes(self, kernel: str) -> list[int]:
        """Returns the axes along which a kernel is needed."""
        return [axis for axis, name in sorted(self.placed.kernels.items()) if name == kernel]

    def run(self, arguments: Mapping[str, object], **changed: object) -> Tensor:
        """Runs torch's own operation.

        Args: `changed` replaces arguments by name.
        """
        return call_named(self.target, {**arguments, **changed})

    def start(self, argument: str, dim: int) -> int:
        """Returns the first row of this rank's part of a tensor, along a dimension cut in one block."""
        cut = self.placed.inputs[argument].cuts[dim]
        assert cut is not None and cut.blocks == 1
        return cut.points[cut.place(self.group.position, self.group.mesh)]


Arguments = Mapping[str, object]
Kernel = Callable[[LocalCall, Arguments], object]


def _tensor(arguments: Arguments, name: str) -> Tensor:
    value = arguments[name]
    assert isinstance(value, Tensor), name
    return value


def _reshape(call: LocalCall, arguments: Arguments) -> Tensor:
    return _tensor(arguments, "self" if "self" in arguments else "input").reshape(call.shape())


def _expand(call: LocalCall, arguments: Arguments) -> Tensor:
    before, after = call.placed.inputs["self"].shape, call.placed.operation.outputs[0]
    old = (*(0,) * (len(after) - len(before)), *before)
    sizes = [-1 if a == b else n for a, b, n in zip(old, after, call.shape(), strict=True)]
    return _tensor(arguments, "self").expand(
        sizes
    )  # what is not repeated stays, as many samples as there are


def _split(call: LocalCall, arguments: Arguments) -> list[Tensor]:
    dim = arguments["dim"]
    assert isinstance(dim, int)
    sizes = [call.shape(i)[dim] for i in range(len(call.placed.outputs))]
    return list(torch.split(_tensor(arguments, "self"), sizes, dim))


SIZED: Final[Mapping[str, Kernel]] = (
    dict.fromkeys(
        [
            f"aten.{name}"
            for name in ("view", "reshape", "unflatten", "_unsafe_view", "view_as", "reshape_as")
        ],
        _reshape,
    )
    | dict.fromkeys(("aten.expand", "aten.expand_as"), _expand)
    | dict.fromkeys(("aten.chunk", "aten.split", "aten.split_with_sizes"), _split)
)


def _share(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns this rank's addend of a mean: the mean of its own elements, weighed by how many they are."""
    name = next(name for name, value in arguments.items() if isinstance(value, Tensor))
    source, out = call.placed.inputs[name], call.placed.outputs[0]
    here, mesh = call.group.position, call.group.mesh
    own = prod(source.local_shape(here, mesh)) * prod(out.shape)
    return call.run(arguments) * (own / (prod(out.local_shape(here, mesh)) * prod(source.shape)))


@dataclass(frozen=True)
class OwnPlaces:
    """The places of rows in this rank's part of a table, as a call in a stage's graph; 0 for rows of other ranks."""

    start: int
    rows: int

    def __call__(self, indices: Tensor) -> Tensor:
        return torch.where(self.here(indices), indices - self.start, 0)

    def here(self, indices: Tensor) -> Tensor:
        """Returns which rows are this rank's."""
        return (indices >= self.start) & (indices < self.start + self.rows)

    def padding(self, index: int) -> int:
        """Returns the place of the row that gets no gradient, -1 where another rank has it."""
        return index - self.start if self.start <= index < self.start + self.rows else -1


@dataclass(frozen=True)
class OwnRows:
    """Rows that were taken from this rank's part of a table: an addend, zero where another rank has the row."""

    places: OwnPlaces

    def __call__(self, found: Tensor, indices: Tensor) -> Tensor:
        return found.masked_fill_(~self.places.here(indices).unsqueeze(-1), 0)


def own_places(call: LocalCall) -> OwnPlaces:
    """Returns the places of rows of a table that is cut along its rows."""
    cut = call.placed.inputs["weight"].cuts[0]
    assert cut is not None and cut.blocks == 1
    return OwnPlaces(call.start("weight", 0), cut.length(cut.place(call.group.position, call.group.mesh)))


class _Rows(FunctionCtx):
    smoothing: float
    classes: int
    saved_tensors: tuple[Tensor, ...]


class _Classes(torch.autograd.Function):
    """The cross entropy of every row, whose backward keeps one tensor of the size of the logits, and makes one."""

    @staticmethod
    def forward(
        ctx: _Rows,
        logits: Tensor,
        highest: Tensor,
        own: Tensor,
        here: Tensor,
        classes: int,
        smoothing: float,
        axes: Sequence[int],
        group: CutGroup,
    ) -> Tensor:
        def summed(x: Tensor) -> Tensor:
            for axis in axes:
                x = group.reduced(x, axis)
            return x

        shifted = logits - highest.unsqueeze(1)
        wanted = summed(shifted.gather(1, own).squeeze(1) * here)
        mean = summed(shifted.sum(1)) / classes if smoothing else wanted
        weights = shifted.exp_()
        total = summed(weights.sum(1))
        ctx.smoothing, ctx.classes = smoothing, classes
        ctx.save_for_backward(weights, total, own, here)
        return total.log() - (1 - smoothing) * wanted - smoothing * mean

    @staticmethod
    @once_differentiable
    def backward(ctx: _Rows, grad: Tensor) -> tuple[Any, ...]:
        weights, total, own, here = ctx.saved_tensors
        back = weights * (grad / total).unsqueeze(1)
        back.scatter_add_(1, own, (grad * here * (ctx.smoothing - 1)).unsqueeze(1))
        if ctx.smoothing:
            back -= (grad * (ctx.smoothing / ctx.classes)).unsqueeze(1)
        return back, None, None, None, None, None, None, None


def _classes(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns the cross entropy of logits that are cut along the classes: three small sums over the ranks."""
    logits, target = _tensor(arguments, "self"), _tensor(arguments, "target")
    if torch.is_autocast_enabled(logits.device.type) and logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()  # as torch's own cross entropy is computed under autocast
    axes = call.axes("classes")
    smoothing = arguments.get("label_smoothing", 0.0)
    assert isinstance(smoothing, int | float)
    classes, start = call.placed.inputs["self"].shape[1], call.start("self", 1)
    highest = logits.detach().amax(1)
    for axis in axes:
        highest = call.group.reduced(highest, axis, lambda x: x.amax(0))
    here = (target >= start) & (target < start + logits.shape[1])
    own = torch.where(here, target - start, 0).unsqueeze(1)
    rows_loss: Tensor = _Classes.apply(
        logits, highest, own, here, classes, float(smoothing), axes, call.group
    )  # type: ignore[no-untyped-call]
    valid = _valid(target, arguments)
    loss = rows_loss * valid
    if not arguments.get("reduction", 1):
        return loss
    rows = call.axes("rows")
    count = _counted(call, valid.sum(), rows)
    return loss.sum() / count if arguments.get("reduction", 1) == 1 else loss.sum()


def _valid(target: Tensor, arguments: Arguments) -> Tensor:
    ignored = arguments.get("ignore_index", -100)
    assert isinstance(ignored, int)
    return target.ne(ignored)


def _counted(call: LocalCall, count: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        count = call.group.reduced(count, axis)
    return count


def _rows(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns this rank's addend of a mean over targets: its own sum, by the number of targets of all ranks."""
    if call.axes("classes"):
        return _classes(call, arguments)
    valid = _valid(_tensor(arguments, "target"), arguments)
    return call.run(arguments, reduction=2) / _counted(call, valid.sum(), call.axes("rows"))


def _causal(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns causal attention for this rank's rows of the query, with all keys and values."""
    query, key = _tensor(arguments, "query"), _tensor(arguments, "key")
    rows, columns, start = query.shape[-2], key.shape[-2], call.start("query", query.ndim - 2)
    seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(start)
    return call.run(arguments, attn_mask=seen, is_causal=False)


def _ring(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns attention for this rank's rows of the query, with keys and values that go round the ranks."""
    query, key, value = (_tensor(arguments, name) for name in ("query", "key", "value"))
    (axis,), cut = call.axes("ring"), call.placed.inputs["query"].cuts[query.ndim - 2]
    assert cut is not None and cut.blocks == 1
    scale = arguments.get("scale")
    assert scale is None or isinstance(scale, int | float)
    ring = Ring(call.group, axis, cut.points, bool(arguments.get("is_causal", False)))
    mask = arguments.get("attn_mask")
    assert mask is None or isinstance(mask, Tensor)
    return ring_attention(query, key, value, ring, scale, mask)


def _dropped(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns this rank's part of a dropout, with the numbers that one process would draw for it."""
    x, p, draw = _tensor(arguments, "input"), arguments["p"], call.draw
    assert isinstance(p, int | float) and draw is not None, (
        "random operations are keyed before a stage is cut"
    )
    parts = {}
    for dim, cut in enumerate(call.placed.outputs[0].cuts):
        if cut is not None:
            place = cut.place(call.group.position, call.group.mesh)
            parts[dim] = (call.placed.outputs[0].shape[dim], cut.runs(place))
    return draw.dropped(x, p, parts)


def _grouped(call: LocalCall, arguments: Arguments) -> Tensor:
    """Returns a norm of groups of channels, for this rank's groups."""
    groups = arguments["num_groups"]
    assert isinstance(groups, int)
    channels, own = call.placed.inputs["input"].shape[1], _tensor(arguments, "input").shape[1]
    return call.run(arguments, num_groups=groups * own // channels)


KERNELS: Final[Mapping[str, Kernel]] = {
    "share": _share,
    "classes": _classes,
    "causal": _causal,
    "ring": _ring,
    "dropped": _dropped,
    "rows": _rows,
    "grouped": _grouped,
}
