"""The loop dimensions of an operation, along which ranks can share its work.

A rule gives the factors of one operation. Each says, for every tensor, along which dimension it then lies in parts,
or that every rank has it whole (R where only a share of its gradient is made here), or as an addend (P).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from planner.layout.lying import DimCut, GroupLayout
from planner.spatial import Call, Layout


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
