"""A model as data under a cut: how it lies, and what each layer of the busiest rank computes, sends and keeps.

cut = cut_of(model, micro, (2,), (Wish("blocks.*.attention", 0, "heads"),))
parts = layer_parts(cut)
own = local_model(model, cut, micro)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import Final, NamedTuple

from planner.errors import BadInput
from planner.layout.local_graph import Conversion, LocalGraph, LocalOperation
from planner.layout.lying import GroupLayout, Mesh, positions
from planner.layout.moves import MOVES
from planner.layout.propagate import propagate
from planner.layout.wishes import Wish, depth, granted, of_path, unmet
from planner.model import ModelGraph
from planner.spatial import GETITEM, INPUT, NONE, OTHERWISE, Operation, from_text

STATE_PREFIX: Final = (
    "state:"  # before the name of a parameter or buffer, among the tensors of a `LocalGraph`
)
ROUNDS: Final = {"gather": 1, "scatter": 1, "exchange": 1, "reduce": 2}  # exchanges one after the other
COPIES: Final = (
    "gather",
    "own",
    "scatter",
    "exchange",
    "pad",
)  # what they make is another tensor than what was
PRODUCTS: Final[
    Mapping[str, tuple[str, int]]
] = {  # operation -> an argument and the dimension that is summed over
    "aten.linear": ("input", -1),
    "aten.addmm": ("mat1", -1),
    "aten.matmul": ("self", -1),
    "aten.bmm": ("self", -1),
    "aten.scaled_dot_product_attention": ("key", -2),
}


FORGETFUL: Final = frozenset(
    f"aten.{name}"
    for name in ["add", "sub", "neg", "linear", "addmm", "embedding", "to", "mean", "sum", "cat", "stack"]
) | {GETITEM}


@lru_cache(maxsize=16)
def operations_in(lines: tuple[str, ...]) -> tuple[Operation, ...]:
    """Returns the operations of a model, given as text, for the micro-batch that was captured."""
    return tuple(map(from_text, lines))


@lru_cache(maxsize=16)
def operations_at(lines: tuple[str, ...], micro: int) -> tuple[Operation, ...]:
    """Returns the operations of a model for one micro-batch.

    Args: `lines` are those of a `ModelGraph`, of the micro-batch that was captured.
    Raises: BadInput where a size depends on the batch otherwise than as a multiple of it.
    """
    found = operations_in(lines)
    captured = next((x.outputs[0][x.samples[0]] for x in found if x.operation == INPUT and _grows(x)), micro)
    return found if micro == captured else tuple(_at(x, captured, micro) for x in found)


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


class _Model(NamedTuple):
    graph: ModelGraph

    def __hash__(self) -> int:
        return id(self.graph)  # quick; what is cached keeps the graph alive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and other.graph is self.graph


@lru_cache(maxsize=64)
def _cut_of(
    of: _Model, micro: int, mesh: Mesh, wishes: tuple[Wish, ...], stages: tuple[tuple[str, ...], ...]
) -> LocalGraph:
    model = of.graph
    operations, stage_of = operations_at(model.operations, micro), _stages(stages)
    trained = {f"{STATE_PREFIX}{row.name}" for row in model.parameters if row.trainable}
    found = propagate(
        operations, mesh, granted(wishes, operations, stage_of), trained, _resolved(model, stage_of)
    )
    unmet(wishes, found.taken, operations, stage_of)
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


class LayerPart(NamedTuple):
    """One layer as the rank with most to do has it."""

    work: float = 1.0  # share of the layer's operations that it computes
    kept: float = 1.0  # share of what the layer keeps of its own
    sent: float = 0.0  # elements that it sends forward
    back: float = 0.0  # and backward
    rounds: int = 0  # exchanges one after the other forward
    back_rounds: int = 0
    made: int = 0  # elements of what conversions make besides Values
    converted: frozenset[str] = frozenset()  # Values that it reads only as conversions have made them


def layer_parts(found: LocalGraph) -> dict[str, LayerPart]:
    """Returns what a cut leaves of each layer, and what it adds."""
    inside: dict[str, list[LocalOperation]] = defaultdict(list)
    for done in found.placed:
        if done.operation.layer:
            inside[done.operation.layer].append(done)
    shapes = {name: layouts[0].shape for name, layouts in found.layouts.items()}
    parts = {
        layer: LayerPart(
            work=_mean({done.operation.name: (_weight(done, shapes), _work(done)) for done in own}),
            kept=_mean({x.operation.name: (_made(x), _work(x)) for x in own if _saves(x)}),
            converted=_converted(own, found),
        )
        for layer, own in inside.items()
    }
    for conversion in found.conversions():
        layer = conversion.layer
        parts[layer] = _added(parts.get(layer, LayerPart()), conversion, found.mesh)
    return parts


def _mean(shares: Mapping[str, tuple[float, float]]) -> float:
    """Returns the mean of shares, each with its weight before it."""
    total = sum(weight for weight, _ in shares.values())
    return sum(weight * share for weight, share in shares.values()) / total if total else 1.0


def _made(done: LocalOperation) -> float:
    return float(sum(map(prod, done.operation.outputs)))


def _saves(done: LocalOperation) -> bool:
    """Returns whether an operation keeps a tensor for its backward that is no parameter and no view."""
    return done.operation.operation not in FORGETFUL and done.operation.operation not in MOVES


def _converted(own: Sequence[LocalOperation], found: LocalGraph) -> frozenset[str]:
    reads: dict[str, bool] = {}  # tensor -> whether all reads are of a conversion of it
    for done in own:
        for argument, name in done.reads():
            if done.operation.operation != GETITEM:
                other = done.inputs[argument].cuts != found.layouts[name][0].cuts
                reads[name] = reads.get(name, True) and other
    return frozenset(name for name, other in reads.items() if other)


def _work(done: LocalOperation) -> float:
    """Returns the share of an operation that one rank computes: that of the most finely cut tensor it reads or makes."""
    layouts = (*done.inputs.values(), *done.outputs)
    return min((share_of(layout) for layout in layouts), default=1.0)


def _weight(done: LocalOperation, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Returns what an operation takes of its layer, about: elements, and for products of matrices their length."""
    argument, dim = PRODUCTS.get(done.operation.operation, ("", 0))
    name = dict(done.reads()).get(argument, "")
    return _made(done) * (2 * shapes[name][dim] if shapes.get(name) else 1)


def _added(part: LayerPart, conversion: Conversion, mesh: Mesh) -> LayerPart:
    (sent, back), steps, target = conversion.sent(mesh), conversion.steps, conversion.target
    copies = any(step.forward in COPIES for step in steps)
    home = steps if conversion.trained else ()
    return part._replace(
        sent=part.sent + sent,
        back=part.back + back,
        rounds=part.rounds + sum(ROUNDS.get(step.forward, 0) for step in steps),
        back_rounds=part.back_rounds + sum(ROUNDS.get(step.backward, 0) for step in home),
        made=part.made + (ceil(share_of(target) * prod(target.shape)) if copies else 0),
    )


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
    own, every = set(layers), operations_in(model.operations)
    return any(x.layer in own and depth(of_path(x), wish.pattern) for x in every)
