"""What a stage costs, for every cut at once: the profile as integer tables over layer intervals [i, j).

Times are prefix sums in nanoseconds, so a path through a schedule is a sum of functions of single boundaries.
Bytes are exact per interval: each storage counts once in a stage and again on the other side of a cut, a tied
parameter counts once in each stage that uses it. Rectangles of (i, j) carry both; their sums are the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadInput
from planner.model import ModelGraph, Value
from planner.profile import PERSISTENT, CostKey, LayerCost, Profile, Seconds
from planner.schedule.action import Kind

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NS = 1e9


class _Rectangles:
    """Sums amounts over rectangles of the plane of intervals: i in [i0, i1), j in [j0, j1)."""

    def __init__(self, layers: int) -> None:
        self.corners: IntArray = np.zeros((layers + 2, layers + 2), np.int64)

    def add(self, i: tuple[int, int], j: tuple[int, int], amount: int) -> None:
        if i[0] < i[1] and j[0] < j[1]:
            self.corners[i[0], j[0]] += amount
            self.corners[i[1], j[0]] -= amount
            self.corners[i[0], j[1]] -= amount
            self.corners[i[1], j[1]] += amount

    def add_once(self, users: Iterable[int], amount: int, *, after: int = -1) -> None:
        """`amount` in every interval that starts after `after` and holds at least one of the (sorted) users."""
        previous, end = after, len(self.corners) - 1
        for user in users:
            self.add((previous + 1, user + 1), (user + 1, end), amount)
            previous = user

    @property
    def table(self) -> IntArray:
        return self.corners.cumsum(0).cumsum(1)[:-1, :-1]


@dataclass(frozen=True, kw_only=True)
class Edges:
    """One row a (Value, consumer): where it was made, the consumer before (or the producer), the consumer."""

    value: IntArray
    made: IntArray
    previous: IntArray
    consumer: IntArray
    bytes: IntArray
    backward: BoolArray  # a gradient flows back

    def between(self, low: int, high: int) -> Edges:
        """Those that some boundary from `low` to `high` cuts."""
        chosen = (self.previous < high) & (self.consumer >= low)
        return Edges(
            value=self.value[chosen],
            made=self.made[chosen],
            previous=self.previous[chosen],
            consumer=self.consumer[chosen],
            bytes=self.bytes[chosen],
            backward=self.backward[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class Tables:
    """One profiled setting over the whole model; `[i, j]` is the stage of layers i..j-1."""

    graph: ModelGraph
    setting: CostKey
    whole_from: int
    time_ns: Mapping[Kind, IntArray]  # prefix sums over layers
    spread_ns: Mapping[Kind, IntArray]
    saved: IntArray  # [i, j] kept for one micro-batch in flight, runtime-held inputs included
    entered: IntArray  # [i, j] Values that come from before i or from the batch
    leaving: IntArray  # [i, j] Values that a later stage reads
    held: IntArray  # prefix sums: still there between I and W
    parameters: IntArray  # [i, j] with buffers
    gradients: IntArray  # [i, j]
    tied: IntArray  # [i, j] gradients of parameters that other stages use as well
    elements: IntArray  # [i, j] trainable elements
    whole_elements: IntArray  # [i, j] the most of them that no sharing among holders divides
    workspace: IntArray  # [i, j] the highest of any layer
    edges: Edges
    state_bytes_per_element: float
    step_ns_per_element: float

    @property
    def layers(self) -> int:
        return len(self.graph.layers)

    @property
    def key(self) -> tuple[object, ...]:
        """What bytes depend on."""
        return self.setting.micro, self.setting.split, self.whole_from

    @cached_property
    def direct(self) -> BoolArray:
        """Boundaries at which a layer reads what the one before it made, and hands a gradient back; and both ends."""
        edges = self.edges
        found: BoolArray = np.zeros(self.layers + 1, np.bool_)
        found[edges.consumer[edges.backward & (edges.consumer == edges.made + 1)]] = True
        found[[0, -1]] = True
        return found

    @cached_property
    def typical_crossing_bytes(self) -> int:
        """Median over the boundaries of what is read beyond them."""
        where = np.arange(1, self.layers)[:, None]
        crosses = (self.edges.previous < where) & (where <= self.edges.consumer)
        return int(np.median(crosses @ self.edges.bytes)) if self.layers > 1 else 0

    @cached_property
    def least_direct_bytes(self) -> int:
        """What a layer hands to the next one, at least."""
        edges = self.edges
        chosen = edges.backward & (edges.consumer == edges.made + 1)
        sizes = np.bincount(edges.consumer[chosen], edges.bytes[chosen], self.layers)
        return int(sizes[1:][self.direct[1:-1]].min(initial=1 << 60)) if self.direct[1:-1].any() else 0

    def stage_ns(self, kind: Kind, cuts: IntArray) -> IntArray:
        """Duration of each stage; `cuts` (..., D + 1) holds 0, the boundaries and the number of layers."""
        return np.diff(self.time_ns[kind][cuts], axis=-1)


def price(profile: Profile, setting: CostKey) -> Tables:
    """Tables of one micro-batch, split, precision and execution; BadInput names a layer that was not profiled."""
    graph = profile.graph
    costs = [_cost(profile, layer.name, setting) for layer in graph.layers]
    size_of = {value.name: profile.value_bytes(value.name, setting) for value in graph.values}
    return tables(profile, setting, costs, size_of)


def tables(
    profile: Profile,
    setting: CostKey,
    costs: Sequence[LayerCost],
    size_of: Mapping[str, int],
    *,
    whole_from: int = 0,
) -> Tables:
    """Of costs by layer and sizes by Value; `whole_from` is the layer from which on no sample is in shards."""
    graph = profile.graph
    saved, entered, leaving = _values(graph, costs, size_of)
    parameters, gradients, tied, elements = _parameters(graph)
    workspace = np.array([cost.workspace_bytes for cost in costs], np.int64)
    return Tables(
        graph=graph,
        setting=setting,
        whole_from=whole_from,
        time_ns=_prefixes(costs, "median"),
        spread_ns=_prefixes(costs, "spread"),
        saved=saved,
        entered=entered,
        leaving=leaving,
        held=_prefix(cost.held_bytes for cost in costs),
        parameters=parameters,
        gradients=gradients,
        tied=tied,
        elements=elements,
        whole_elements=_whole_elements(graph),
        workspace=_running_maximum(workspace),
        edges=_edges(graph, size_of),
        state_bytes_per_element=profile.optimizer.state_bytes_per_parameter,
        step_ns_per_element=profile.optimizer.seconds_per_parameter.median * NS,
    )


def _cost(profile: Profile, layer: str, setting: CostKey) -> LayerCost:
    key = setting._replace(signature=profile.graph.layer[layer].signature)
    if key not in profile.costs:
        why = profile.failures.get(key, "not profiled")
        known = ", ".join(sorted({str(k.micro) for k in profile.costs}, key=int))
        raise BadInput(f"layer '{layer}' at micro-batch {setting.micro}: {why}", allowed=f"micro {known}")
    return profile.costs[key]


def _prefix(amounts: Iterable[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(np.fromiter(amounts, np.int64))]).astype(np.int64)


def _prefixes(costs: Sequence[LayerCost], part: str) -> dict[Kind, IntArray]:
    def total(name: str) -> IntArray:
        rows: list[Seconds] = [getattr(cost, name) for cost in costs]
        return _prefix(round(getattr(row, part) * NS) for row in rows)

    forward = total("forward")
    return {
        Kind.F: forward,
        Kind.B: total("backward"),
        Kind.I: total("input_grad"),
        Kind.W: total("weight_grad"),
        Kind.R: forward,
    }


def _values(
    graph: ModelGraph, costs: Sequence[LayerCost], size_of: Mapping[str, int]
) -> tuple[IntArray, IntArray, IntArray]:
    count = len(graph.layers)
    saved, entered, leaving = _Rectangles(count), _Rectangles(count), _Rectangles(count)
    keepers = _first_keepers(graph, costs)
    for value in graph.values:
        made = graph.index[value.producer] if value.producer else -1
        users = sorted(graph.index[name] for name in set(value.consumers))
        size = size_of[value.name]
        entered.add_once(users, size, after=made)
        saved.add_once(users, size, after=made)
        if made >= 0 and users:
            leaving.add((0, made + 1), (made + 1, users[-1] + 1), size)
        if made >= 0 and value.name in keepers:
            saved.add((0, made + 1), (keepers[value.name] + 1, count + 1), size)
    own = _prefix(cost.own_saved_bytes for cost in costs)
    return saved.table + (own[None, :] - own[:, None]), entered.table, leaving.table


def _first_keepers(graph: ModelGraph, costs: Sequence[LayerCost]) -> dict[str, int]:
    """The first layer that keeps a Value, or a view of it, by the Value whose storage it is."""
    origin: dict[str, str | None] = {value.name: value.name for value in graph.values}
    first: dict[str, int] = {}
    for index, (layer, cost) in enumerate(zip(graph.layers, costs, strict=True)):
        for out, source in cost.aliases:
            origin[layer.outputs[out]] = None if source == PERSISTENT else origin[layer.inputs[source]]
        kept = [layer.inputs[i] for i in cost.kept_inputs] + [layer.outputs[i] for i in cost.kept_outputs]
        for name in kept:
            if (root := origin[name]) is not None:
                first.setdefault(root, index)
    return first


def _parameters(graph: ModelGraph) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    count = len(graph.layers)
    held, gradients, tied, elements = (_Rectangles(count) for _ in range(4))
    for parameter in graph.parameters:
        users = sorted(graph.index[name] for name in set(parameter.users))
        held.add_once(users, parameter.bytes)
        if parameter.trainable:
            gradients.add_once(users, parameter.bytes)
            elements.add_once(users, prod(parameter.shape))
            tied.add_once(users, parameter.bytes)
            tied.add((0, users[0] + 1), (users[-1] + 1, count + 1), -parameter.bytes)
    for buffer in graph.buffers:
        held.add_once(sorted(graph.index[name] for name in set(buffer.users)), buffer.bytes)
    return held.table, gradients.table, tied.table, elements.table


def _whole_elements(graph: ModelGraph) -> IntArray:
    """Sharing gives each holder whole parameters: the largest one, and what other stages hold as well."""
    count = len(graph.layers)
    largest, tied = np.zeros(count, np.int64), _Rectangles(count)
    for parameter in graph.parameters:
        if parameter.trainable:
            users, size = sorted(graph.index[name] for name in set(parameter.users)), prod(parameter.shape)
            largest[users] = np.maximum(largest[users], size)
            tied.add_once(users, size)
            tied.add((0, users[0] + 1), (users[-1] + 1, count + 1), -size)
    return tied.table + _running_maximum(largest)


def _running_maximum(amounts: IntArray) -> IntArray:
    count = len(amounts)
    table: IntArray = np.zeros((count + 1, count + 1), np.int64)
    for i in range(count):
        table[i, i + 1 :] = np.maximum.accumulate(amounts[i:])
    return table


def _edges(graph: ModelGraph, size_of: Mapping[str, int]) -> Edges:
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for number, value in enumerate(graph.values):
        rows += _edges_of(graph, number, value, size_of[value.name])
    table = np.array(rows, np.int64).reshape(-1, 6).T
    value_, made, previous, consumer, size, backward = table
    return Edges(
        value=value_,
        made=made,
        previous=previous,
        consumer=consumer,
        bytes=size,
        backward=backward.astype(np.bool_),
    )


def _edges_of(
    graph: ModelGraph, number: int, value: Value, size: int
) -> list[tuple[int, int, int, int, int, bool]]:
    if not value.producer:
        return []
    made = graph.index[value.producer]
    users = sorted(graph.index[name] for name in set(value.consumers))
    return [
        (number, made, previous, user, size, value.needs_grad)
        for previous, user in zip([made, *users], users, strict=False)
    ]
