"""What the search knows of a model: its operations on one micro-batch, what each takes, and what is kept of it.

Times are those of the profile. A layer's time is shared among its operations by their arithmetic and their bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from planner.arrays import NS_PER_S
from planner.errors import BadInput
from planner.layout import FAMILIES, MOVES, LocalOperation, Mesh, named_reads
from planner.model import ModelGraph
from planner.profile import CostKey, Profile
from planner.spatial import GETITEM, INPUT, NONE, STATE, TARGET, Operation, from_text, wider

_FLOPS_A_BYTE: Final = 100.0  # that a device computes while it reads one byte, about
_MATRICES: Final = {"aten.linear": "input", "aten.addmm": "mat1", "aten.matmul": "self", "aten.bmm": "self"}
ATTENTION: Final = "aten.scaled_dot_product_attention"
# What the backward pass reads: an operation's inputs, its results, or both; all others keep nothing.
_INPUTS: Final = frozenset(
    f"aten.{name}"
    for name in [
        "linear",
        "addmm",
        "matmul",
        "bmm",
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


@dataclass(frozen=True, kw_only=True)
class GroupWork:
    """A model as a group of ranks works on one micro-batch of it together."""

    operations: tuple[Operation, ...]
    trained: frozenset[str]  # states with a gradient
    resolved: frozenset[str]  # tensors that must not stay addends
    ns: Mapping[str, float]  # of each operation, forward and backward, where one rank does it all
    state_bytes: float  # held an element of a trained parameter: itself, its gradient, state of the optimizer
    gradient_bytes: int  # an element
    element_bytes: int  # of an activation
    micros: int = 1  # micro-batches a step, for which gradients are summed once

    def with_gradients(self) -> frozenset[str]:
        """Returns the names of all tensors that have a gradient."""
        found = set(self.trained)
        for operation in self.operations:
            if found.intersection(operation.reads()):
                found.add(operation.name)
        return frozenset(found)


def work_of(profile: Profile, key: CostKey, micros: int = 1) -> GroupWork:
    """Returns what a group has to do.

    Args: `key` is the setting, of which the profile must have rows; `micros` are micro-batches a step.
    Raises: BadInput where the profile lacks what is needed, which names it.
    """
    graph = profile.graph
    if not graph.operations:
        raise BadInput(
            "the profile has no operations, of which layouts are made",
            where=profile.workload,
            allowed="a profile of this version, and a model whose sizes do not depend on values",
        )
    if key not in profile.settings:
        known = sorted({x.micro for x in profile.settings if x._replace(micro=key.micro) == key})
        raise BadInput(
            f"the profile has no row for a micro-batch of {key.micro}",
            where=profile.workload,
            allowed=f"{', '.join(map(str, known))}, or measure it: shardwright profile --micro {key.micro}",
        )
    operations = in_batch(tuple(map(from_text, graph.operations)), key.micro)
    size = 2 if key.precision in ("bf16", "fp16") else 4
    return GroupWork(
        operations=operations,
        trained=frozenset(f"state:{row.name}" for row in graph.trained),
        resolved=_handed_out(graph),
        ns=_times(profile, key, operations, size),
        state_bytes=8 + profile.optimizer.state_bytes_per_parameter,
        gradient_bytes=4,
        element_bytes=size,
        micros=micros,
    )


def in_batch(operations: tuple[Operation, ...], micro: int) -> tuple[Operation, ...]:
    """Returns operations as they are in a micro-batch of so many samples."""
    given = [x for x in operations if x.operation in (INPUT, TARGET) and x.samples and x.samples[0] >= 0]
    few = min((x.outputs[0][x.samples[0]] for x in given), default=micro)
    if few == micro:
        return operations
    if micro % few:
        raise BadInput(
            f"a micro-batch of {micro}",
            where="--micro",
            allowed=f"a multiple of {few}, as the model was captured",
        )
    return tuple(x if not _grows(x) else wider(x, micro // few) for x in operations)


def _grows(operation: Operation) -> bool:
    return operation.samples != () and any(dim != NONE for dim in operation.samples)


def _handed_out(graph: ModelGraph) -> frozenset[str]:
    """Returns the names of what a model hands out: its loss above all."""
    return frozenset(x.name for x in graph.values if x.role == "hidden" and not x.consumers)


def _times(
    profile: Profile, key: CostKey, operations: Sequence[Operation], element_bytes: int
) -> dict[str, float]:
    shapes = {x.name: x.outputs[0] for x in operations if x.outputs}
    amounts = {x.name: amount(x, shapes, element_bytes) for x in operations if x.layer}
    totals: dict[str, float] = defaultdict(float)
    for x in operations:
        if x.layer:
            totals[x.layer] += amounts[x.name]
    found = {}
    for x in operations:
        if x.layer and x.operation not in (INPUT, TARGET, STATE):
            cost = profile.cost(x.layer, key)
            share = amounts[x.name] / totals[x.layer] if totals[x.layer] else 0.0
            found[x.name] = (cost.forward.median + cost.backward.median) * NS_PER_S * share
    return found


def amount(operation: Operation, shapes: Mapping[str, tuple[int, ...]], element_bytes: int) -> float:
    """Returns the work of an operation in floating-point operations, its bytes counted as what they keep waiting.

    Args: `shapes` are of the tensors that it reads.
    """
    kind = operation.operation
    if kind in (GETITEM, *MOVES):
        return 0.0
    made = sum(map(prod, operation.outputs))
    read = {argument: shapes.get(name, ()) for argument, name in named_reads(operation)}
    moved = element_bytes * (made + sum(map(prod, read.values())))
    flops = 0.0
    if kind in _MATRICES:
        flops = 2.0 * made * read[_MATRICES[kind]][-1]
    elif kind == ATTENTION:
        flops = 4.0 * made * read["key"][-2]
    elif kind.startswith("aten.conv") and "weight" in read:
        flops = 2.0 * made * prod(read["weight"][1:])
    return flops + _FLOPS_A_BYTE * moved


def kept_of(operation: Operation, made: bool) -> tuple[tuple[str, ...], bool]:
    """Returns the arguments of an operation that its backward pass reads, and whether it reads the result.

    Args: `made` says whether the result has a gradient.
    """
    names = tuple(argument for argument, name in named_reads(operation) if not name.startswith("state:"))
    kind = operation.operation
    if not made:
        return (), False
    if kind == ATTENTION:
        return names, True
    return names if kind in _INPUTS else (), kind in _RESULTS


def share_of(local: LocalOperation, mesh: Mesh) -> float:
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
