"""What each layer of a model is for one rank of a group: its share of the work, and what conversions take.

The work of a layer is shared among its operations by their arithmetic and their bytes. Of each operation, the rank with
most to do counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Final, NamedTuple

from planner.group.machine import MeshOnCluster
from planner.layout import (
    FAMILIES,
    MOVES,
    RING,
    Collective,
    GroupLayout,
    LocalGraph,
    LocalOperation,
    Mesh,
    as_captured,
    path,
    share_of,
)
from planner.spatial import GETITEM, Operation

_FLOPS_A_BYTE: Final = 100.0  # that a device computes while it reads one byte, about
_MATRICES: Final = {
    "aten.linear": "input",
    "aten.addmm": "mat1",
    "aten.matmul": "self",
    "aten.bmm": "self",
    "aten.baddbmm": "batch1",
}
ATTENTION: Final = "aten.scaled_dot_product_attention"
# What the backward pass reads: an operation's inputs, its results, or both; all others keep nothing.
_INPUTS: Final = frozenset(
    f"aten.{name}"
    for name in [
        "linear",
        "addmm",
        "matmul",
        "bmm",
        "baddbmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "layer_norm",
        "rms_norm",
        "gelu",
        "silu",
        "mul",
        "div",
        "pow",
        "cross_entropy_loss",
        "nll_loss",
        "nll_loss_nd",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy_with_logits",
        "log",
        "sin",
        "cos",
        "softplus",
        "leaky_relu",
        "elu",
        "hardswish",
        "mish",
    ]
)
_RESULTS: Final = frozenset(
    f"aten.{name}"
    for name in ["softmax", "log_softmax", "relu", "tanh", "sigmoid", "exp", "rsqrt", "sqrt", "dropout"]
)


def amount(operation: Operation, shapes: Mapping[str, tuple[int, ...]], element_bytes: int) -> float:
    """Returns the work of an operation in floating-point operations, its bytes counted as what they keep waiting.

    Args: `shapes` are of the tensors that it reads.
    """
    kind = operation.operation
    if kind in (GETITEM, *MOVES):
        return 0.0
    made = sum(map(prod, operation.outputs))
    read = {argument: shapes.get(name, ()) for argument, name in operation.named_reads()}
    moved = element_bytes * (made + sum(map(prod, read.values())))
    with as_captured(operation):
        return _flops(kind, made, read) + _FLOPS_A_BYTE * moved


def _flops(kind: str, made: int, read: Mapping[str, tuple[int, ...]]) -> float:
    if kind in _MATRICES:
        return 2.0 * made * read[_MATRICES[kind]][-1]
    if kind == ATTENTION:
        return 4.0 * made * read["key"][-2]
    if kind.startswith("aten.conv") and "weight" in read:
        return 2.0 * made * prod(read["weight"][1:])
    return 0.0


def kept_of(operation: Operation, made: bool) -> tuple[tuple[str, ...], bool]:
    """Returns the arguments of an operation that its backward pass reads, and whether it reads the result.

    Args: `made` says whether the result has a gradient.
    """
    names = tuple(argument for argument, name in operation.named_reads() if not name.startswith("state:"))
    kind = operation.operation
    if not made:
        return (), False
    if kind == ATTENTION:
        return names, True
    return names if kind in _INPUTS else (), kind in _RESULTS


def share_done(local: LocalOperation, mesh: Mesh) -> float:
    """Returns the part of an operation's work that the busiest rank does."""
    if local.operation.operation in FAMILIES:
        layouts = (*local.inputs.values(), *local.outputs)
        axes = {axis for axis, name in enumerate(local.factors) if name not in ("", "addends")}
    else:
        layouts = local.outputs[:1]
        axes = set(range(len(mesh)))
    share, counted = 1.0, set[int]()
    for layout in layouts:
        for cut in layout.cuts:
            if cut is not None and axes.issuperset(cut.axes) and not counted.intersection(cut.axes):
                parts = prod(mesh[axis] for axis in cut.axes)
                share *= max(cut.length(place) for place in range(parts)) / cut.size
                counted |= set(cut.axes)
    return share


class LayerPart(NamedTuple):
    """One layer as the rank with most to do has it."""

    work: tuple[tuple[float, float], ...] = (
        (1.0, 1.0),
    )  # weight of each operation, and the share computed here
    forward_ns: float = 0.0  # that its conversions take
    backward_ns: float = 0.0
    converted: frozenset[str] = frozenset()  # Values that it reads only as conversions have made them


def layer_parts(
    found: LocalGraph, element_bytes: int, machine: MeshOnCluster | None = None, weight_bytes: int = 4
) -> dict[str, LayerPart]:
    """Returns what a cut leaves of each layer, and what it adds.

    Args: `element_bytes` are of an activation, `weight_bytes` of a parameter; without a `machine` conversions take no time.
    """
    inside: dict[str, list[LocalOperation]] = defaultdict(list)
    for done in found.placed:
        if done.operation.layer:
            inside[done.operation.layer].append(done)
    shapes = {name: layouts[0].shape for name, layouts in found.layouts.items()}
    parts = {
        layer: LayerPart(
            work=_weighed(
                [
                    (amount(done.operation, shapes, element_bytes), share_done(done, found.mesh))
                    for done in own
                ]
            ),
            converted=_converted(own, found),
        )
        for layer, own in inside.items()
    }
    for done in found.placed if machine is not None else ():
        assert machine is not None
        ways = _ring_ns(done, element_bytes, machine)
        if any(ways):
            part = parts[done.operation.layer]
            parts[done.operation.layer] = part._replace(
                forward_ns=part.forward_ns + ways[0], backward_ns=part.backward_ns + ways[1]
            )
    for conversion in found.conversions():
        part = parts.get(conversion.layer, LayerPart())
        ways = (0.0, 0.0)
        if machine is not None:
            ways = machine.passage_ns(
                conversion.steps,
                weight_bytes if conversion.gathers_parameter else element_bytes,
                trained=conversion.trained,
                again=conversion.again,
            )
        parts[conversion.layer] = part._replace(
            forward_ns=part.forward_ns + ways[0],
            backward_ns=part.backward_ns + ways[1],
        )
    return parts


class RingElements(NamedTuple):
    """The elements that attention in a ring has on a rank: kept for backward, and besides while it runs."""

    kept: int
    forward: int
    backward: int


def ring_elements(done: LocalOperation, mesh: Mesh) -> RingElements:
    """Returns the elements of an attention whose keys and values go round the ranks of a mesh."""
    own = {name: ceil(prod(x.shape) * share_of(x)) for name, x in done.inputs.items()}
    round_, rows = own["key"] + own["value"], own["query"] // done.operation.outputs[0][-1]
    (axis,) = (axis for axis, name in done.kernels.items() if name == RING)
    scores = 2 * rows * done.inputs["key"].shape[-2] // mesh[axis]
    return RingElements(3 * own["query"] + round_ + rows, scores + 2 * round_, scores + 6 * round_)


def ring_sent(done: LocalOperation, mesh: Mesh) -> tuple[float, float]:
    """Returns the elements that a rank sends of an attention in a ring, forward and backward; none of any other.

    Keys and values go round, and backward once more with their gradients, which go home with a last message. Causal
    attention exchanges rows before and behind.
    """
    axis = next((axis for axis, name in done.kernels.items() if name == RING), None)
    if axis is None:
        return 0.0, 0.0
    layouts = {**done.inputs, "": done.outputs[0]}
    query, key, value, made = (_own_elements(layouts[name], mesh) for name in ("query", "key", "value", ""))
    ranks, rows = mesh[axis], done.inputs["query"].shape[-2]
    moved = 0.0
    if done.operation.arguments.get("is_causal", False) and rows % (2 * ranks) == 0:
        stay = sum(len({2 * place, 2 * place + 1} & {place, 2 * ranks - 1 - place}) for place in range(ranks))
        moved = 1 - stay / (2 * ranks)
    rounds, exchanged = (ranks - 1) * (key + value), moved * (query + key + value + made)
    return rounds + exchanged, rounds + ranks * (key + value) + exchanged


def _own_elements(layout: GroupLayout, mesh: Mesh) -> float:
    """Returns the elements of a tensor that a rank has, on average."""
    return prod(layout.shape) / prod(mesh[axis] for axis in layout.cut_axes)


def _ring_ns(done: LocalOperation, element_bytes: int, machine: MeshOnCluster) -> tuple[float, float]:
    """Returns the nanoseconds in which keys and values go round the ranks forward, and with gradients backward.

    Causal attention exchanges rows before and behind, too.
    """
    axis = next((axis for axis, name in done.kernels.items() if name == RING), None)
    if axis is None:
        return 0.0, 0.0
    others = {a for cut in done.inputs["query"].cuts if cut is not None for a in cut.axes} - {axis}

    def ns(collective: Collective, *names: str, turns: int = 1) -> float:
        shapes = [done.inputs[name].shape for name in names]
        size = element_bytes * sum(map(prod, shapes)) / prod(machine.mesh[a] for a in others)
        return turns * machine.ns(collective, (axis,), size / turns)

    round_ns = ns("gather", "key", "value", turns=machine.turns(axis))
    rows_ns = 0.0
    if done.operation.arguments.get("is_causal", False):
        rows_ns = ns("exchange", "query", "key", "value") + ns("exchange", "query")  # of the result, as large
    return round_ns + rows_ns, 2 * round_ns + rows_ns


def _weighed(shares: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Returns the shares with weights that add up to 1, equal ones together."""
    total, found = sum(weight for weight, _ in shares), dict[float, float]()
    for weight, share in shares:
        found[share] = found.get(share, 0.0) + weight
    return tuple((weight / total, share) for share, weight in found.items()) if total else ((1.0, 1.0),)


def _converted(own: Sequence[LocalOperation], found: LocalGraph) -> frozenset[str]:
    reads: dict[str, bool] = {}  # tensor -> whether all reads are of a conversion of it
    for done in own:
        for argument, name in done.reads():
            if done.operation.operation != GETITEM:
                trained = name in found.trained
                steps = path(found.layouts[name][0], done.inputs[argument], found.mesh, trained=trained)
                other = any(step.forward != "none" for step in steps)
                reads[name] = reads.get(name, True) and other
    return frozenset(name for name, other in reads.items() if other)
