"""Turns a profile into integer tables over layer intervals [i, j): what a stage costs, for every cut at once.

Times are prefix sums in nanoseconds, so a path through a schedule is a sum of functions of single boundaries. Bytes
are exact for each interval. Each storage counts once in a stage and again on the other side of a cut. A tied
parameter counts once in each stage that uses it. Rectangles of (i, j) carry both; their sums are the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from planner.arrays import NS_PER_S, BoolArray, IntArray
from planner.cost.activation_tables import Moving, Walking, Working, in_passes, moving
from planner.cost.messages import Edges, Talk, edges
from planner.cost.shared_weights import CutBy, Owned, Rectangles, dropped, largest_of, owned, written_bytes
from planner.cost.unit_tables import UnitTables, nothing, unit_tables
from planner.errors import BadInput
from planner.model import ModelGraph
from planner.plan import Plan
from planner.profile import CostKey, LayerCost, Profile, Seconds, storages
from planner.schedule import Kind

INDEX_BYTES = 4  # of the place of one kept entry


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The costs of one profiled setting over the whole model; `[i, j]` is the stage of layers i to j - 1."""

    graph: ModelGraph
    setting: CostKey
    regridded: tuple[object, ...]  # tells choices of grids apart that begin with the same grid
    time_ns: Mapping[Kind, IntArray]  # prefix sums over layers
    spread_ns: Mapping[Kind, IntArray]
    saved: IntArray  # [i, j] kept for one micro-batch in flight, runtime-held inputs included
    owing: IntArray  # prefix sums over layers: bytes saved besides where weight gradients are owed
    entered: IntArray  # [i, j] Values that come from before i or from the batch
    leaving: IntArray  # [i, j] Values that a later stage reads
    parameters: IntArray  # [i, j] with buffers
    gradients: IntArray  # [i, j]
    summed: IntArray  # [i, j] gradients that several ranks sum: all but those of parts that nobody else has
    tied: IntArray  # [i, j] gradients of parameters that other stages use as well
    elements: IntArray  # [i, j] trainable elements
    trained: IntArray  # [i, j] number of trainable parameters
    written: IntArray  # [i, j] buffers that the forward pass writes and does not read
    remembered: IntArray  # [i, j] buffers that the forward pass writes and reads
    loss_bytes: int  # of one micro-batch
    owned: tuple[Owned, ...]  # trained parameters, which ranks deal out that share the optimizer's state
    largest: IntArray  # [i, j] elements of the largest trainable parameter
    scattered: IntArray  # [i, j] elements that an update writes into weights held apart from them
    dropped: IntArray  # [i, j] the most bytes of one dense gradient and of what is gathered from it
    unsummed: frozenset[str]  # parameters that a group cuts, whose gradients `summed` does not have
    moving: Moving
    walking: Walking
    working: Working
    edges: Edges
    state_bytes_per_element: float
    state_bytes_per_tensor: float
    largest_bytes_per_element: float
    other_bytes_per_element: float
    step_ns_per_element: float
    scatter_ns_per_element: float
    averaged: bool = False  # whether a training keeps an average of every trained parameter beside it
    parted: Mapping[tuple[int, ...], IntArray] = field(default_factory=dict)  # axes that cut it -> gradients
    types: Mapping[str, Tables] = field(default_factory=dict)  # by device, where each has its own profile

    @property
    def layers(self) -> int:
        """Returns the number of layers."""
        return len(self.graph.layers)

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what the bytes depend on: micro-batch, grid, and where samples are cut otherwise."""
        return self.setting.micro, self.setting.split, *self.regridded

    @cached_property
    def talk(self) -> Talk:
        """Returns which neighbouring stages send each other messages."""
        return Talk(edges=self.edges, layers=self.layers)

    @cached_property
    def units(self) -> UnitTables:
        """Returns the bytes of units whose parameters are gathered together."""
        return unit_tables(self.graph)

    @cached_property
    def with_units(self) -> Mapping[str, tuple[IntArray, IntArray, Walking]]:
        """Returns [i, j] workspace, `reversing` and halves where replicas share gradients or parameters."""
        units = self.units.held
        summed, coming = units(lambda each: each.summed), units(lambda each: each.coming)
        both = units(lambda each: each.summed + each.coming)  # a walk may need weights in both halves
        gathered = units(lambda each: each.gathered)
        return {
            "gradients": self.working.shared(summed, nothing, summed, summed, forwards=(nothing, summed)),
            "parameters": self.working.shared(gathered, coming, summed, both, forwards=(gathered, nothing)),
        }

    @cached_property
    def typical_crossing_bytes(self) -> int:
        """Returns the median over the boundaries of the bytes that are read beyond them."""
        where = np.arange(1, self.layers)[:, None]
        crosses = (self.edges.previous < where) & (where <= self.edges.consumer)
        return int(np.median(crosses @ self.edges.bytes)) if self.layers > 1 else 0

    def step_bytes(self, low: IntArray, high: IntArray, *, losses: int, copies: int) -> IntArray:
        """Returns `stage_bytes.step_bytes` of many stages.

        Args: `low` and `high` are arrays of bounds, a stage each; `losses` and `copies` are counts for all of them.
        """
        told = np.where((low < high) & (high == self.layers), losses * self.loss_bytes, 0)
        found: IntArray = copies * self.written[low, high] + told
        return found

    def moving_parts(self, low: IntArray, high: IntArray, again: BoolArray | np.bool_) -> dict[str, IntArray]:
        """Returns the parts of `stage_bytes.stage_bytes` of many stages by name, but for the update.

        Args: `low` and `high` are arrays of bounds, a stage each; `again` tells which stages recompute.
        """
        found = {name: table[low, high] for name, table in vars(self.moving).items()}
        following, _ = found.pop("following"), found.pop("carried")
        copied = np.where(again, self.remembered[low, high], 0)
        answered = found["returning"] + found["back"] > 0
        sent = np.where(again, self.leaving[low, high] - following, found["sent"])
        return found | {
            "saved": self.saved[low, high] - found["shared"] + copied,
            "held": found["held"] + copied,
            "kept": self.entered[low, high] - found["shared"] + copied,
            "sent": np.where(answered, sent, 0),
            "handed": np.where(again, following, found["handed"]),
            "unanswered": np.where(answered, 0, self.leaving[low, high]),
            **in_passes(found["workspace"], found["reversing"], again),
        }


def setting_of(plan: Plan) -> CostKey:
    """Returns the setting that a plan's costs have on whole samples, without a signature."""
    return CostKey("", plan.batch.micro, (), plan.precision, plan.execution)


def price(profile: Profile, setting: CostKey, unsummed: Mapping[str, tuple[int, ...]] = {}) -> Tables:
    """Returns the tables of one setting: micro-batch, precision and execution on whole samples.

    Args: `setting` is a key of the profile, whatever its signature; `unsummed` has the axes that cut parameters.
    Raises: BadInput names a layer that was not profiled at this setting.
    """
    graph = profile.graph
    costs = [_cost(profile, layer.name, setting) for layer in graph.layers]
    size_of = {value.name: profile.value_bytes(value.name, setting) for value in graph.values}
    found = tables(profile, setting, costs, size_of, unsummed=unsummed)
    return replace(found, types={x: price(own, setting, unsummed) for x, own in profile.by_type.items()})


def tables(
    profile: Profile,
    setting: CostKey,
    costs: Sequence[LayerCost],
    size_of: Mapping[str, int],
    *,
    regridded: tuple[object, ...] = (),
    unsummed: Mapping[str, tuple[int, ...]] = {},
) -> Tables:
    """Returns the tables of given costs and sizes.

    Args: `costs` has one row a layer, `size_of` the bytes of every Value. `regridded` tells choices of a grid apart.
    """
    graph, kept = profile.graph, profile.kept.counts
    saved, entered, leaving = _values(graph, costs, size_of)
    parameters, gradients, summed, tied, elements, trained, scattered = _parameters(profile, unsummed)
    moved, walking, working = moving(graph, costs, size_of, saved=saved, entered=entered)
    return Tables(
        graph=graph,
        setting=setting,
        regridded=regridded,
        time_ns=_gathering(_prefixes(costs, "median"), profile),
        spread_ns=_prefixes(costs, "spread"),
        saved=saved,
        owing=_prefix(cost.owing_bytes for cost in costs),
        entered=entered,
        leaving=leaving,
        parameters=parameters,
        gradients=gradients,
        summed=summed,
        tied=tied,
        elements=elements,
        trained=trained,
        written=written_bytes(graph, remembered=False),
        remembered=written_bytes(graph, remembered=True),
        loss_bytes=sum(size_of[name] for name in graph.layers[-1].outputs),
        owned=owned(graph, kept, unsummed),
        largest=largest_of(graph, {row.name: kept.get(row.name, prod(row.shape)) for row in graph.trained}),
        scattered=scattered,
        dropped=largest_of(
            graph, {x: dropped(graph, kept, profile.halved, x) for x in (*kept, *profile.halved)}
        ),
        unsummed=frozenset(unsummed),
        moving=moved,
        walking=walking,
        working=working,
        edges=edges(graph, size_of),
        state_bytes_per_element=profile.optimizer.state_bytes_per_parameter,
        state_bytes_per_tensor=profile.optimizer.state_bytes_per_tensor,
        largest_bytes_per_element=profile.optimizer.largest_bytes_per_parameter,
        other_bytes_per_element=profile.optimizer.other_bytes_per_parameter,
        step_ns_per_element=profile.optimizer.seconds_per_parameter.median * NS_PER_S,
        scatter_ns_per_element=profile.optimizer.scatter_s * NS_PER_S,
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
        return _prefix(round(getattr(row, part) * NS_PER_S) for row in rows)

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
    saved, entered, leaving = Rectangles(count), Rectangles(count), Rectangles(count)
    first = storages(graph, costs).first
    for value in graph.values:
        made = graph.index[value.producer] if value.producer else -1
        users = sorted(graph.index[name] for name in set(value.consumers))
        size = size_of[value.name]
        entered.add_once(users, size, after=made)
        saved.add_once(users, size, after=made)
        if made >= 0 and users:
            leaving.add((0, made + 1), (made + 1, users[-1] + 1), size)
        if made >= 0 and value.name in first:
            saved.add((0, made + 1), (first[value.name] + 1, count + 1), size)
    own = _prefix(cost.own_saved_bytes for cost in costs)
    return saved.table + (own[None, :] - own[:, None]), entered.table, leaving.table


def _gathering(time_ns: dict[Kind, IntArray], profile: Profile) -> dict[Kind, IntArray]:
    """Returns prefix sums in which a layer also gathers the gradients of the kept entries of its parameters."""
    if not profile.kept.counts:
        return time_ns
    rate, kept = profile.optimizer.gather_s * NS_PER_S, profile.kept.counts
    rows = (sum(kept.get(name, 0) for name in set(layer.parameters)) for layer in profile.graph.layers)
    gathered = _prefix(round(count * rate) for count in rows)
    return {kind: ns + gathered if kind in (Kind.B, Kind.W) else ns for kind, ns in time_ns.items()}


def _parameters(profile: Profile, unsummed: CutBy) -> tuple[IntArray, ...]:
    graph, kept = profile.graph, profile.kept.counts
    held, gradients, summed, tied, elements, trained, scattered = every = [
        Rectangles(len(graph.layers)) for _ in range(7)
    ]
    for parameter in graph.parameters:
        users = sorted(graph.index[name] for name in set(parameter.users))
        size, number = parameter.bytes, prod(parameter.shape)
        if parameter.name in kept:
            size, number = size // number * kept[parameter.name], kept[parameter.name]
            held.add_once(users, INDEX_BYTES * number)
        if parameter.name in kept or parameter.name in profile.halved:
            held.add_once(users, size)  # beside the dense weight
            scattered.add_once(users, number)
        dense = parameter.bytes // 2 if parameter.name in profile.halved else parameter.bytes
        held.add_once(users or [0], dense)  # what no layer uses, the first rank keeps for the checkpoints
        if parameter.trainable and users:
            gradients.add_once(users, size)
            summed.add_once(users, size)
            elements.add_once(users, number)
            trained.add_once(users, 1)
            tied.add_once(users, size)
            inside = (0, users[0] + 1), (users[-1] + 1, len(graph.layers) + 1)
            summed.add(*inside, -size if parameter.name in unsummed else 0)
            tied.add(*inside, -size)
    for buffer in graph.buffers:
        held.add_once(sorted(graph.index[name] for name in set(buffer.users)) or [0], buffer.bytes)
    return tuple(each.table for each in every)
