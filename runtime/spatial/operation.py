"""One operation of a stage on shards: brings its tensors to where the rule wants them, then runs the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from torch import Tensor
from torch._ops import OpOverload

from planner.capture import Target, named_arguments
from planner.spatial import Call, Layout, Step
from runtime.spatial.exchange import fetched
from runtime.spatial.group import SampleGroup, enter, once

Arguments = dict[str, object]


@dataclass(frozen=True)
class Local:
    """Everything that a kernel sees: the rule's integers, and arguments by name with tensors already fetched."""

    target: Target
    call: Call
    step: Step
    mesh: SampleGroup
    arguments: Arguments

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
        return call_named(self.target, self.arguments | changed)

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


def call_named(target: Target, arguments: Mapping[str, object]) -> Tensor:
    """Calls an operation with arguments by name, in the order of its schema.

    Args: `arguments` may lack those that have a default.
    Returns: the operation's result.
    """
    if not isinstance(target, OpOverload):
        return target(**arguments)
    schema = target._schema.arguments
    args = [arguments[a.name] for a in schema if not a.kwarg_only and a.name in arguments]
    kwargs = {a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments}
    result: Tensor = target(*args, **kwargs)
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

    def __call__(self, *args: object, **kwargs: object) -> object:
        given = named_arguments(self.target, args, kwargs)
        arguments = {name: self._brought(name, value) for name, value in given.items()}
        return self.kernel(Local(self.target, self.call, self.step, self.mesh, arguments))

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
