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
    """What a kernel sees: the rule's integers, and arguments by name with tensors already fetched."""

    target: Target
    call: Call
    step: Step
    mesh: SampleGroup
    arguments: Arguments

    def tensor(self, name: str) -> Tensor:
        value = self.arguments[name]
        assert isinstance(value, Tensor), (self.call.operation, name)
        return value

    def run(self, **changed: object) -> Tensor:
        return call_named(self.target, self.arguments | changed)

    def place(self, axis: int) -> int:
        return self.mesh.coordinates[axis]

    def rows(self, layout: Layout, dim: int) -> tuple[int, int]:
        """This rank's rows of a layout along a dimension."""
        return layout.region(self.mesh.coordinates)[dim]

    def share(self, layout: Layout) -> tuple[int, int]:
        """The whole is `a` times this rank's part of a layout, divided by `b`."""
        local = layout.local_shape(self.mesh.coordinates)
        return prod(layout.shape), prod(local)


def call_named(target: Target, arguments: Mapping[str, object]) -> Tensor:
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
    """How one tensor argument comes in: axes it enters, and whether it is a parameter."""

    missing: frozenset[int]  # axes along which the operation is cut and the tensor is whole
    parameter: bool


@dataclass(frozen=True)
class Site:
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
        use = self.uses.get(name)
        if use is not None and x.requires_grad:
            x = counted(x, use, self.mesh)
        for fetch in self.step.fetches.get(name, ()):
            x = fetched(x, fetch, self.mesh)
        return x


def counted(x: Tensor, use: Use, mesh: SampleGroup) -> Tensor:
    """So that a whole tensor's gradient ends whole, and a parameter's counts once when summed over the ranks."""
    cut = frozenset(axis for axis, parts in enumerate(mesh.grid) if parts > 1)
    if use.parameter:
        return x if use.missing >= cut else once(x, mesh, use.missing)
    return enter(x, mesh, use.missing) if use.missing else x
