"""A model as data under a cut: how it lies, and what one rank holds of it.

cut = cut_of(model, micro, (2,), (Wish("blocks.*.attention", 0, "heads"),))
own = local_model(model, cut, micro)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

from planner.errors import BadInput
from planner.layout.local_graph import STATE_PREFIX, LocalGraph
from planner.layout.lying import GroupLayout, Mesh, positions
from planner.layout.propagate import propagate
from planner.layout.refusals import try_rules
from planner.layout.wishes import Wish, depth, granted, of_path, unmet
from planner.model import ModelGraph
from planner.spatial import INPUT, NONE, OTHERWISE, Operation, read_operations


class _Model(NamedTuple):
    graph: ModelGraph

    def __hash__(self) -> int:
        return id(self.graph)  # quick; what is cached keeps the graph alive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and other.graph is self.graph


@lru_cache(maxsize=16)
def _operations_in(of: _Model) -> tuple[Operation, ...]:
    """Returns the operations of a model for the micro-batch that was captured."""
    return read_operations(of.graph)


def operations_at(model: ModelGraph, micro: int) -> tuple[Operation, ...]:
    """Returns the operations of a model for one micro-batch.

    Args: `model` may come from any file.
    Raises: BadInput where a size depends on the batch otherwise than as a multiple of it, and for operations that no
        capture has written.
    """
    return _operations_at(_Model(model), micro)


@lru_cache(maxsize=16)
def _operations_at(of: _Model, micro: int) -> tuple[Operation, ...]:
    found = _operations_in(of)
    captured = next((x.outputs[0][x.samples[0]] for x in found if x.operation == INPUT and _grows(x)), micro)
    if micro != captured:
        found = tuple(_at(x, captured, micro) for x in found)
    try_rules(found)
    return found


def _grows(operation: Operation) -> bool:
    return bool(operation.samples) and operation.samples[0] >= 0


def _at(operation: Operation, captured: int, micro: int) -> Operation:
    if OTHERWISE in operation.samples:
        raise BadInput(
            f"a size that {operation.operation} makes depends on the batch, and is no multiple of it",
            where=operation.place,
            allowed=f"micro-batches of {captured}, as captured, or no cut",
        )
    shapes = [
        shape if dim == NONE else (*shape[:dim], shape[dim] * micro // captured, *shape[dim + 1 :])
        for shape, dim in zip(operation.outputs, operation.samples, strict=True)
    ]
    return replace(operation, outputs=tuple(shapes)) if operation.samples else operation


@lru_cache(maxsize=64)
def _stages(names: tuple[tuple[str, ...], ...]) -> Mapping[str, int]:
    return {name: index for index, stage in enumerate(names) for name in stage}


def cut_of(
    model: ModelGraph,
    micro: int,
    mesh: Mesh,
    wishes: Sequence[Wish],
    stages: Sequence[Sequence[str]] = (),
) -> LocalGraph:
    """Returns a model as the ranks of a group compute it; the same on every rank and for the planner.

    Args: `mesh` has the parts along each axis of the group; `wishes` say which modules take which factor; `stages` has
        the layers of each stage of a plan, for what passes between stages is no addend; empty is one stage.
    Raises: NoRule for what cannot be done exactly, BadInput for a wish that no module can grant.
    """
    if not model.operations:
        raise BadInput(
            "the operations of the model are not known",
            where="cut",
            allowed="a profile made anew, of a model whose sizes are known before it runs",
        )
    key = tuple(map(tuple, stages))
    return _cut_of(_Model(model), micro, mesh, tuple(wishes), key)


@lru_cache(maxsize=64)
def _cut_of(
    of: _Model, micro: int, mesh: Mesh, wishes: tuple[Wish, ...], stages: tuple[tuple[str, ...], ...]
) -> LocalGraph:
    model = of.graph
    operations, stage_of = operations_at(model, micro), _stages(stages)
    trained = {f"{STATE_PREFIX}{row.name}" for row in model.parameters if row.trainable}
    found = propagate(
        operations, mesh, granted(wishes, operations, stage_of), trained, _resolved(model, stage_of)
    )
    unmet(wishes, found.taken, operations, mesh, stage_of)
    return found


def _resolved(model: ModelGraph, stage_of: Mapping[str, int]) -> set[str]:
    """Returns the Values that must be no addends: what leaves the model, and what passes between stages."""
    return {
        value.name
        for value in model.values
        if value.producer
        and (
            not value.consumers
            or len({stage_of.get(layer, 0) for layer in (value.producer, *value.consumers)}) > 1
        )
    }


def share_of(layout: GroupLayout) -> float:
    """Returns the share of a tensor that the rank with the largest part has.

    Args: `layout` is any; addends and whole tensors have a share of 1.
    """
    share = 1.0
    for cut in layout.cuts:
        if cut is not None:
            share *= max(b - a for a, b in pairwise(cut.points)) / max(1, cut.points[-1])
    return share


def local_shape(layout: GroupLayout, mesh: Mesh) -> tuple[int, ...]:
    """Returns the shape of the largest part that a rank has of a tensor."""
    return max((layout.local_shape(at, mesh) for at in positions(mesh)), key=prod)


def local_model(model: ModelGraph, found: LocalGraph, micro: int) -> ModelGraph:
    """Returns a model as one rank of the group holds it: largest parts of parameters and of Values.

    Args: `found` is of `model`; `micro` is the micro-batch that it is of, and that Values are then right for alone.
    """
    values = []
    for value in model.values:
        share = share_of(found.layouts[value.name][0])
        size = ceil(value.bytes(micro) * share)
        values.append(value if share == 1.0 else replace(value, fixed_bytes=size, sample_bytes=0))
    parameters = []
    for row in model.parameters:
        layout = found.states.get(STATE_PREFIX + row.name)
        if layout is not None and any(layout.cuts):
            shape = local_shape(layout, found.mesh)
            row = replace(row, shape=shape, bytes=row.bytes // prod(row.shape) * prod(shape))
        parameters.append(row)
    return replace(model, values=tuple(values), parameters=tuple(parameters))


def refused_cut(
    model: ModelGraph, micro: int, mesh: Mesh, wishes: Sequence[Wish], stages: Sequence[Sequence[str]] = ()
) -> str:
    """Returns why a cut cannot be had of a model, in one message; "" where it can.

    Args: all are those of `cut_of`.
    """
    try:
        cut_of(model, micro, mesh, wishes, stages)
    except BadInput as error:
        return str(error)
    return ""


def named_in(wish: Wish, model: ModelGraph, layers: Sequence[str]) -> bool:
    """Returns whether a wish is for some operation of the given layers of a model."""
    own, every = set(layers), _operations_in(_Model(model))
    return any(x.layer in own and depth(of_path(x), wish.pattern) for x in every)
