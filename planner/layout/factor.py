"""The loop dimensions of an operation, along which ranks can share its work.

A rule gives the factors of one operation. Each says, for every tensor, along which dimension it then lies in parts,
or that every rank has it whole (R where only a share of its gradient is made here), or as an addend (P).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from planner.layout.local_graph import ADDENDS, LocalOperation
from planner.layout.lying import DimCut, GroupLayout, everywhere, without_owed
from planner.spatial import Call, Layout, Operation


class Along(NamedTuple):
    """A dimension of a tensor that a factor cuts, and how many of its rows belong to one unit of the factor."""

    dim: int
    unit: int = 1


Side = Along | Literal["I", "R", "P"]


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop dimension of an operation."""

    name: str
    size: int
    inputs: Mapping[
        str, Side
    ]  # by argument, the first of the list "tensors" is "tensors.0"; missing ones are R
    outputs: tuple[Side, ...]
    kernel: str = ""  # what computes it on parts; torch's own operation where empty
    cuts_weight: bool = False  # taken only where it is asked for by name
    asked_for: bool = False  # the same, of one that cuts no weight
    also: tuple[str, ...] = field(default=())  # other names that it goes by

    def side(self, argument: str) -> Side:
        """Returns how a tensor argument lies where the factor is taken.

        Args: `argument` is the argument's name in the schema.
        """
        return self.inputs.get(argument, "R")


def broadcast(call: Call, kernel: str = "") -> tuple[Factor, ...]:
    """Returns the factors of an element-wise operation: every dimension of its result.

    Args: `kernel` computes it on parts.
    """
    shape = call.outputs[0]
    return tuple(over(call, dim, shape, kernel=kernel) for dim in range(len(shape)) if shape[dim] > 1)


def over(call: Call, dim: int, shape: tuple[int, ...], *, kernel: str = "") -> Factor:
    """Returns the factor of one dimension that operands share, as far as they have it.

    Args: `shape` is the one that operands are broadcast to.
    """
    inputs: dict[str, Side] = {}
    for name, layout in call.tensors():
        own = dim - len(shape) + len(layout.shape)
        if own >= 0 and layout.shape[own] == shape[dim]:
            inputs[name] = Along(own)
    return Factor(numbered(dim), shape[dim], inputs, (Along(dim),) * len(call.outputs), kernel)


def numbered(dim: int) -> str:
    """Returns the name of the factor that is a dimension of the result, counted from the front."""
    return f"dim{dim}"


def shape_of(call: Call, name: str) -> tuple[int, ...]:
    """Returns the global shape of a tensor argument; an empty one where it is None.

    Args: `name` is the argument's name in the schema.
    """
    value = call.get(name)
    return value.shape if isinstance(value, Layout) else ()


def sided(layout: GroupLayout, side: Side, cut: DimCut) -> GroupLayout:
    """Returns a layout with one factor more taken along the axes of a cut.

    Args: `cut` is in units of the factor; `side` says how the tensor then lies along its axes.
    """
    axes = set(cut.axes)
    if isinstance(side, Along):
        own = DimCut(cut.axes, tuple(point * side.unit for point in cut.points), cut.blocks)
        return layout.with_dim(side.dim, own)
    if side == "P":
        return GroupLayout(layout.shape, layout.cuts, layout.partial | axes, layout.owed)
    if side == "R":
        return GroupLayout(layout.shape, layout.cuts, layout.partial, layout.owed | axes)
    return layout


def laid(
    operation: Operation,
    factors: Sequence[Factor],
    chosen: Sequence[str],
    cuts: Mapping[str, DimCut],
    shapes: Mapping[str, tuple[int, ...]],
    trained: Collection[str],
) -> LocalOperation:
    """Returns an operation with what it reads and makes, as the factors that it takes have it.

    Args: `chosen` has a name of `factors` an axis, or ALIKE or ADDENDS; `cuts` says how each factor taken is cut;
        `shapes` are those of its tensors by argument, and `trained` the arguments that have a gradient.
    """
    by_name = {factor.name: factor for factor in factors}

    def lying(shape: tuple[int, ...], side: Callable[[Factor], Side]) -> GroupLayout:
        layout = everywhere(shape)
        for name in dict.fromkeys(chosen):
            if name == ADDENDS:
                axes = {axis for axis, x in enumerate(chosen) if x == name}
                layout = GroupLayout(shape, layout.cuts, layout.partial | axes, layout.owed)
            elif name in by_name:
                layout = sided(layout, side(by_name[name]), cuts[name])
        return layout

    inputs = {}
    for argument, shape in shapes.items():
        want = lying(shape, lambda x, a=argument: x.side(a))  # type: ignore[misc]
        inputs[argument] = want if argument in trained else without_owed(want)
    outputs = tuple(
        lying(shape, lambda x, i=i: x.outputs[i])  # type: ignore[misc]
        for i, shape in enumerate(operation.outputs)
    )
    kernels = {
        axis: by_name[name].kernel
        for axis, name in enumerate(chosen)
        if name in by_name and by_name[name].kernel
    }
    return LocalOperation(operation, tuple(chosen), inputs, outputs, kernels)
