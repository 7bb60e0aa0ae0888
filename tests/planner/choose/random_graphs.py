"""Small random graphs of operations, and the least price of all their layouts by trying each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from random import Random

from planner.choose import GroupWork, Storing, price
from planner.choose.prices import NOT_STORED
from planner.errors import BadInput
from planner.group import MeshOnCluster
from planner.layout import FAMILIES, Mesh, propagate
from planner.spatial import INPUT, STATE, Operation, Ref, call_of, whole

SIZES = (4, 8, 12)


def random_work(random: Random, count: int) -> GroupWork:
    """Returns a graph of so many operations: linear layers, sums, products and functions, on tensors of two dimensions."""
    rows = random.choice(SIZES)
    found = [Operation("x", "", INPUT, {}, ((rows, random.choice(SIZES)),))]
    found.append(Operation("state:w", "", STATE, {}, (found[0].outputs[0],)))
    found.append(_made("o0", "aten.mul", {"self": Ref("x"), "other": Ref("state:w")}, found[0].outputs[0]))
    for i in range(1, count):
        made = [x for x in found if x.name.startswith("o")]
        source = random.choice(made[-3:])
        width, kind = (
            source.outputs[0][1],
            random.choice(("linear", "linear", "gelu", "add", "mul", "layer_norm")),
        )
        name = f"o{i}"
        if kind == "linear":
            out = random.choice(SIZES)
            found.append(Operation(f"state:{name}", "", STATE, {}, ((out, width),)))
            arguments = {"input": Ref(source.name), "weight": Ref(f"state:{name}"), "bias": None}
            found.append(_made(name, "aten.linear", arguments, (rows, out)))
        elif kind == "layer_norm":
            arguments = {"input": Ref(source.name), "normalized_shape": (width,), "weight": None}
            found.append(_made(name, "aten.layer_norm", arguments, (rows, width)))
        elif kind == "gelu":
            found.append(_made(name, "aten.gelu", {"self": Ref(source.name)}, (rows, width)))
        else:
            other = random.choice([x for x in made if x.outputs == source.outputs])
            arguments = {"self": Ref(source.name), "other": Ref(other.name)}
            found.append(_made(name, f"aten.{kind}", arguments, (rows, width)))
    states = frozenset(x.name for x in found if x.operation == STATE)
    return GroupWork(
        operations=tuple(found),
        trained=states,
        resolved=frozenset({found[-1].name}),
        ns={x.name: random.uniform(0, 4000) for x in found if x.name.startswith("o")},
        state_bytes=16.0,
        gradient_bytes=4,
        element_bytes=4,
        micros=random.choice((1, 3)),
    )


def _made(name: str, kind: str, arguments: dict[str, object], shape: tuple[int, ...]) -> Operation:
    return Operation(name, name, kind, arguments, (shape,), path=name)  # type: ignore[arg-type]


def least_price(
    work: GroupWork, mesh: Mesh, on: MeshOnCluster, worth: float, storing: Storing = NOT_STORED
) -> float:
    """Returns the least price of every layout that `propagate` can give, each laid and priced by itself.

    Every operation takes every factor that it has along every axis, or none, or what it takes unasked.
    Args: `storing` says which parameters may rest in parts.
    """
    made = [x for x in work.operations if x.name.startswith("o")]
    asked = [list(itertools.product(_names(work, x), repeat=len(mesh))) for x in made]
    best = float("inf")
    for chosen in itertools.product(*asked):
        by_name = {x.name: names for x, names in zip(made, chosen, strict=True)}
        best = min(best, _price(work, by_name, on, worth, storing))
    return best


def count_of(work: GroupWork, mesh: Mesh) -> int:
    """Returns how many layouts `least_price` tries."""
    made = [x for x in work.operations if x.name.startswith("o")]
    return prod(len(_names(work, x)) ** len(mesh) for x in made)


def _names(work: GroupWork, operation: Operation) -> list[str]:
    shapes = {x.name: whole(x.outputs[0]) for x in work.operations}
    factors = FAMILIES[operation.operation](call_of(operation, shapes))
    unasked = [""] if operation.operation == "aten.add" else []
    return ["alike", *unasked, *(x.name for x in factors)]


def _price(
    work: GroupWork, by_name: Mapping[str, Sequence[str]], on: MeshOnCluster, worth: float, storing: Storing
) -> float:
    def wished(operation: Operation, axis: int) -> Sequence[tuple[str, object]]:
        name = by_name[operation.name][axis]
        return ((name, ""),) if name else ()

    try:
        graph = propagate(work.operations, on.mesh, wished, work.trained, work.resolved)
    except BadInput:
        return float("inf")
    found = price(graph, work, on, storing, worth)
    return found.ns + worth * found.bytes
