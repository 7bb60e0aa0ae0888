"""What the search knows of a model: its operations on one micro-batch, what each takes, and what is kept of it.

Times are those of the profile. A layer's time is shared among its operations by their arithmetic and their bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.arrays import NS_PER_S
from planner.errors import BadInput
from planner.group import Curve, activation_bytes, amount, curves_of, part_of
from planner.layout import operations_at
from planner.model import ModelGraph
from planner.profile import CostKey, Profile
from planner.spatial import INPUT, STATE, TARGET, Operation


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
    update_ns: float = 0.0  # of an element of a trained parameter
    curves: Mapping[str, Curve] = field(
        default_factory=dict
    )  # of an operation: shares of it, of its time; else alike

    def time_ns(self, name: str, share: float) -> float:
        """Returns the nanoseconds of a share of an operation, forward and backward."""
        curve = self.curves.get(name)
        return self.ns.get(name, 0.0) * (share if curve is None else part_of(curve, share))

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
    operations, size = operations_at(graph, key.micro), activation_bytes(profile, key)
    return GroupWork(
        operations=operations,
        trained=frozenset(f"state:{row.name}" for row in graph.trained),
        resolved=_handed_out(graph),
        ns=_times(profile, key, operations, size),
        state_bytes=8 + profile.optimizer.state_bytes_per_parameter,
        gradient_bytes=4,
        element_bytes=size,
        micros=micros,
        curves=_curves(profile, key, operations),
        update_ns=profile.optimizer.seconds_per_parameter.median * NS_PER_S,
    )


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


def _curves(profile: Profile, key: CostKey, operations: Sequence[Operation]) -> dict[str, Curve]:
    """Returns how the time of each operation shrinks with its share, as that of its layer does."""
    found: dict[str, Curve] = {}
    for layer in profile.graph.layers:
        curves = curves_of(profile, layer.name, key)
        both = [
            (share, time + back)
            for (share, time), (_, back) in zip(curves["forward"], curves["backward"], strict=True)
        ]
        whole = part_of(tuple(both), 1.0)
        found[layer.name] = tuple((share, time / whole) for share, time in both) if whole else ()
    return {x.name: found[x.layer] for x in operations if found.get(x.layer)}
