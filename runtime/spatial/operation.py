"""One operation of a stage on shards: brings its tensors to where the rule wants them, then runs the kernel.

Moves a tensor from one grid of the ranks to another, and its gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx, once_differentiable

from planner.capture import Target, named_arguments
from planner.spatial import Call, Layout, Resplit, Step, coordinates
from runtime.draws import Draw
from runtime.spatial.exchange import fetched, memory_format
from runtime.spatial.group import SampleGroup, Wire, enter, once

Arguments = dict[str, object]


@dataclass(frozen=True)
class Local:
    """Everything that a kernel sees: the rule's integers, and arguments by name with tensors already fetched."""

    target: Target
    call: Call
    step: Step
    mesh: SampleGroup
    arguments: Arguments
    draw: Draw | None = None  # how it draws random numbers, where it does by sample

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor argument as it was fetched.

        Args: `name` is the argument's name in the operation's schema.
        """
        value = self.arguments[name]
        assert isinstance(value, Tensor), (self.call.operation, name)
        return value

    def run(self, **changed: object) -> Tensor:
        """Runs torch's own operation on the fetched tensors.

        Args: `changed` replaces arguments by name.
        Returns: the operation's result for this rank.
        """
        return call_named(self.target, self.arguments | changed, self.draw)

    def place(self, axis: int) -> int:
        """Returns this rank's coordinate along an axis.

        Args: `axis` is a number of an axis of the grid.
        """
        return self.mesh.coordinates[axis]

    def rows(self, layout: Layout, dim: int) -> tuple[int, int]:
        """Returns the first row and the end of this rank's part of a layout.

        Args: `dim` is a dimension of the layout.
        Returns: rows of the whole tensor, the end excluded.
        """
        return layout.region(self.mesh.coordinates)[dim]

    def share(self, layout: Layout) -> tuple[int, int]:
        """Returns two sizes whose ratio is this rank's share of a layout.

        Args: `layout` is of the captured example's sizes.
        Returns: elements of the whole, and elements of this rank's part.
        """
        local = layout.local_shape(self.mesh.coordinates)
        return prod(layout.shape), prod(local)


def call_named(target: Target, arguments: Mapping[str, object], draw: Draw | None = None) -> Tensor:
    """Calls an operation with arguments by name, in the order of its schema.

    Args: `arguments` may lack those that have a default; `draw` is called in the place of what draws by it.
    Returns: the operation's result.
    """
    if not isinstance(target, OpOverload):
        return target(**arguments)
    schema = target._schema.arguments
    args = [arguments[a.name] for a in schema if not a.kwarg_only and a.name in arguments]
    kwargs = {a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments}
    result: Tensor = (draw or target)(*args, **kwargs)
    return result


Kernel = Callable[[Local], object]


@dataclass(frozen=True)
class Use:
    """The way in which one whole tensor enters an operation on shards."""

    missing: frozenset[int]  # axes along which the operation is cut and the tensor is whole
    parameter: bool


@dataclass(frozen=True)
class Site:
    """An operation's place in a rewritten graph: brings its tensors, then runs its kernel."""

    target: Target
    kernel: Kernel
    call: Call
    step: Step
    mesh: SampleGroup
    uses: Mapping[str, Use] = field(default_factory=dict)
    draw: Draw | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        given = named_arguments(self.target, args, kwargs)
        arguments = {name: self._brought(name, value) for name, value in given.items()}
        return self.kernel(Local(self.target, self.call, self.step, self.mesh, arguments, self.draw))

    def _brought(self, name: str, value: object) -> object:
        if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
            return [self.bring(f"{name}.{i}", x) if isinstance(x, Tensor) else x for i, x in enumerate(value)]
        return self.bring(name, value) if isinstance(value, Tensor) else value

    def bring(self, name: str, x: Tensor) -> Tensor:
        """Fetches what the operation needs of one tensor, and sees to it that its gradient is counted right.

        Args: `name` is the argument's name; `x` is this rank's part, or whole.
        Returns: the tensor as the kernel wants it.
        """
        use = self.uses.get(name)
        if use is not None and x.requires_grad:
            x = counted(x, use, self.mesh)
        for fetch in self.step.fetches.get(name, ()):
            x = fetched(x, fetch, self.mesh)
        return x


def counted(x: Tensor, use: Use, mesh: SampleGroup) -> Tensor:
    """Passes on a tensor such that a whole tensor's gradient ends whole, and a parameter's counts once over the ranks.

    Args: `use` tells along which axes the tensor is whole.
    Returns: `x`, or a view of it.
    """
    cut = frozenset(axis for axis, parts in enumerate(mesh.grid) if parts > 1)
    if use.parameter:
        return x if use.missing >= cut else once(x, mesh, use.missing)
    return enter(x, mesh, use.missing) if use.missing else x


Rows = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Moved:
    """A change of grid, as a call in a stage's graph."""

    plan: Resplit
    wire: Wire

    def __call__(self, x: Tensor) -> Tensor:
        if self.plan.shared and self.plan.source.whole and not x.requires_grad:
            share = x.shape[self.plan.samples] // self.wire.size
            return x.narrow(self.plan.samples, self.wire.rank * share, share)
        result: Tensor = _Moved.apply(x, self.plan, self.wire)  # type: ignore[no-untyped-call]
        return result


class _Context(FunctionCtx):
    plan: Resplit
    wire: Wire


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, x: Tensor, plan: Resplit, wire: Wire) -> Tensor:
        ctx.wire, ctx.plan = wire, plan.of(x.shape[plan.samples]) if plan.shared else plan
        return moved(x, ctx.plan, wire)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor) -> tuple[Any, ...]:
        return moved(grad, ctx.plan.back, ctx.wire), None, None


def moved(x: Tensor, plan: Resplit, wire: Wire) -> Tensor:
    """Exchanges parts of a tensor so that each rank holds its part on the new grid; not differentiable.

    Args: `x` is this rank's part on the old grid.
    Returns: this rank's part on the new grid, in the memory format of `x`.
    """
    mine, own, new = wire.rank, plan.held(wire.rank), plan.wanted(wire.rank)
    out = torch.empty(_shape(x, plan, mine), dtype=x.dtype, device=x.device, memory_format=memory_format(x))
    sends = [
        (receiver, _part(x, plan.dims, piece.rows, own).contiguous())
        for receiver in range(wire.size)
        if receiver != mine
        for piece in plan.pieces(receiver)
        if piece.sender == mine
    ]
    places = [(piece.sender, _part(out, plan.dims, piece.rows, new)) for piece in plan.pieces(mine)]
    arriving = [
        (sender, torch.empty(place.shape, dtype=x.dtype, device=x.device), place)
        for sender, place in places
        if sender != mine
    ]
    wait = wire.exchange(sends, [(sender, buffer) for sender, buffer, _ in arriving])
    for piece in plan.pieces(mine):
        if piece.sender == mine:
            _part(out, plan.dims, piece.rows, new).copy_(_part(x, plan.dims, piece.rows, own))
    wait()
    for _, buffer, place in arriving:
        place.copy_(buffer)
    return out


def _shape(x: Tensor, plan: Resplit, rank: int) -> list[int]:
    """Returns the shape of a rank's new part; sizes that are not cut are those of `x`, since the plan
    knows an example's batch only."""
    made = plan.target.local_shape(coordinates(rank, plan.after))
    return [made[dim] if dim in plan.dims else n for dim, n in enumerate(x.shape)]


def _part(x: Tensor, dims: Sequence[int], rows: Rows, held: Rows) -> Tensor:
    for dim, (low, high), (first, _) in zip(dims, rows, held, strict=True):
        x = x.narrow(dim, low - first, high - low)
    return x
