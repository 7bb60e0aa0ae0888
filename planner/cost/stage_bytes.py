"""Defines the memory that one micro-batch takes in a stage, from the costs of its layers, one stage at a time.

All tables follow this definition. Bytes are those that the runtime holds, part by part as in StageBytes. Within a
stage not everything is there at once. While a layer runs, forwards or backwards, only layers up to it hold what
they have saved: later ones have not saved yet, or have let go. Beside these bytes lie the Values that pass by the
layer, and on the way back their gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from planner.cost.messages import (
    added_values,
    crossing_values,
    early_values,
    entering_values,
    is_far,
    is_read_at,
    last_use,
    leaving_values,
    passing_values,
    returning_values,
)
from planner.cost.shared_weights import (
    arriving_at_made,
    dropped,
    early,
    reused,
    reused_values,
    summed,
    waiting,
    weighing,
)
from planner.cost.unit_tables import UnitBytes, in_two, unit_bytes
from planner.cost.values import forward_values, forward_workspaces, told_values, total_bytes
from planner.model import ModelGraph, Value
from planner.plan import BY_ELEMENT, StageShard
from planner.profile import CostKey, OptimizerCost, Profile, stage_memory, storages
from planner.schedule import Schedule
from planner.simulate import SQUARE_BYTES, SQUARED_ELEMENTS, StageBytes

LEAF_BYTES = 4  # the tensor that stands for all that enters a stage, at which a walk ends
LOOK_BYTES = 16  # the few numbers that tell whether an output of a forward is NaN


def stage_bytes(
    profile: Profile,
    layers: Sequence[str],
    key: CostKey,
    *,
    recompute: bool = False,
    before: str = "",
    walking: bool = False,
    shard: StageShard | None = None,
) -> StageBytes:
    """Returns the memory that one micro-batch takes in a stage of consecutive layers on whole samples, by part.

    If the stage recomputes, its sent activations count in full, because nothing else keeps what the second forward
    sent.

    Args: `layers` are names in the order of the model; `key` is the setting, whatever its signature. A stage that
        is to `recompute` does so for all layers, or those before the layer `before`. `walking` is set where a layer
        of the same stage that is not among `layers` makes the stage walk. `shard` is what its replicas share.
    """
    if not layers:
        return StageBytes(saved=0)
    graph = profile.graph
    costs = [profile.cost(name, key) for name in layers]
    walking |= any(cost.walks for cost in costs)
    if before:
        return _in_parts(profile, layers, key, before, walking, shard)
    stage = _Stage(profile, layers, key, shard, walking)
    first, last, saved, workspace = stage.first, stage.last, stage.saved[-1], stage.workspace
    forward = workspace if recompute else stage.forward
    entering, leaving = entering_values(graph, layers), leaving_values(graph, first, last)
    returning = returning_values(graph, entering, leaving, last)
    halves = stage.walked(entering, total_bytes(profile, returning, key)) if walking else stage.stored()
    held_in = storages(graph, [profile.cost(x.name, key) for x in graph.layers])
    kept_in = held_in.keepers()
    sent = [v for v in leaving if recompute or not first <= kept_in.get(v.name, -1) <= last]
    came = [v for v in entering if v.producer]
    near = [v for v in came if graph.index[v.producer] == first - 1]
    handed, back = ([v for v in values if is_read_at(graph, v, last + 1)] for values in (sent, returning))
    handed = [v for v in handed if v.needs_grad]
    unanswered = 0 if total_bytes(profile, returning, key) else total_bytes(profile, leaving, key)
    shared = total_bytes(profile, (v for v in near if held_in.own(v.name, first - 1)), key)
    own, kept = {name for layer in layers for name in graph.layer[layer].parameters}, profile.kept.counts
    copied = remembered_bytes(graph, layers) if recompute else 0
    return StageBytes(
        saved=saved - shared + copied,
        held=halves.held + copied,
        kept=stage.inputs[-1] - shared + copied,
        shared=shared,
        workspace=forward + max((dropped(graph, kept, profile.halved, name) for name in own), default=0),
        reversing=workspace - forward,
        splitting=max(0, halves.first - saved - workspace),
        weighing=max(0, halves.second - halves.held - workspace),
        arriving=total_bytes(profile, came, key) - total_bytes(profile, near, key),
        near=total_bytes(profile, near, key),
        crossing=total_bytes(profile, crossing_values(graph, first), key),
        sent=0 if unanswered else total_bytes(profile, sent, key) - total_bytes(profile, handed, key),
        handed=total_bytes(profile, handed, key),
        returning=total_bytes(profile, returning, key) - total_bytes(profile, back, key),
        back=total_bytes(profile, back, key),
        far=total_bytes(profile, (v for v in entering if is_far(graph, v, first)), key),
        unanswered=unanswered,
        update=update_bytes(profile.optimizer, [_updated(graph, kept, name) for name in own]),
    )


def _in_parts(
    profile: Profile,
    layers: Sequence[str],
    key: CostKey,
    before: str,
    walking: bool,
    shard: StageShard | None,
) -> StageBytes:
    graph, done = profile.graph, layers.index(before)
    parts = layers[:done], layers[done:]
    early, late = (stage_bytes(profile, part, key, walking=walking, shard=shard) for part in parts)
    leaving = leaving_values(graph, graph.index[layers[0]], graph.index[layers[-1]])
    passing = (value for value in leaving if value.producer in layers[:done])
    crossing = crossing_values(graph, graph.index[layers[0]])
    carried = (value for value in crossing if last_use(graph, value) >= graph.index[before])
    return in_two(
        early,
        late,
        stage_bytes(profile, layers, key, recompute=True, shard=shard),
        passing=total_bytes(profile, passing, key),
        carried=total_bytes(profile, carried, key),
        copied=remembered_bytes(graph, parts[0]),
    )


class _Halves(NamedTuple):
    """The bytes of a backward in halves."""

    held: int
    first: int  # the most while the first half of a backward runs
    second: int


class _Stage:
    """The bytes that are there while each layer of one stage runs."""

    def __init__(
        self, profile: Profile, layers: Sequence[str], key: CostKey, shard: StageShard | None, walks: bool
    ) -> None:
        graph = self._graph = profile.graph
        self._costs = [profile.cost(name, key) for name in layers]
        self._units = UnitBytes(*([0] * len(layers) for _ in UnitBytes._fields))
        if shard is not None and shard.what in BY_ELEMENT:
            self._units = unit_bytes(graph, layers, shard, walks)
        self.first, self.last = graph.index[layers[0]], graph.index[layers[-1]]
        count = len(layers)
        self.saved = [stage_memory(profile, layers[:k], key) for k in range(1, count + 1)]
        self.inputs = [
            total_bytes(profile, entering_values(graph, layers[:k]), key) for k in range(1, count + 1)
        ]
        # Gradients of the loss, throughout a backward.
        self._told = total_bytes(profile, told_values(graph, layers), key)
        self._size_of = {value.name: profile.value_bytes(value.name, key) for value in graph.values}
        rows = [profile.cost(x.name, key) for x in graph.layers]
        self._forwards, self._keepers = forward_workspaces(rows), storages(graph, rows).keepers()
        self._on_top = [
            self._told
            + total_bytes(profile, passing_values(graph, self.first, self.first + k), key)
            + total_bytes(profile, added_values(graph, self._keepers, self.first, self.first + k), key)
            + cost.workspace_bytes
            for k, cost in enumerate(self._costs)
        ]
        early = [early_values(graph, self.first, self.first + k, self.last) for k in range(count)]
        self._early = [total_bytes(profile, values, key) for values in early]
        each = zip(self.saved, self.inputs, self._on_top, self._early, strict=True)
        self._during = [kept + self.inputs[-1] - seen + top + soon for kept, seen, top, soon in each]

    @property
    def workspace(self) -> int:
        """Returns the bytes on top of what is saved, at the moment of the highest use."""
        reuses, end = reused(self._graph), self.last + 1
        during = [
            now + waiting(reuses, self.first, end, self.first + k) + self._units.whole[k]
            for k, now in enumerate(self._during)
        ]
        return max(LOOK_BYTES, max(during) - self.saved[-1])

    @property
    def forward(self) -> int:
        """Returns the part of `workspace` that is there in a forward."""
        if self._forwards is None:
            return self.workspace
        during = []
        for k, at in enumerate(range(self.first, self.last + 1)):
            passing, sent = forward_values(self._graph, self._keepers, self.first, at, self.last)
            top = sum(self._size_of[v.name] for v in passing) - sum(self._size_of[v.name] for v in sent)
            kept = self.saved[k] + self.inputs[-1] - self.inputs[k]
            during.append(kept + top + self._forwards[at] + self._units.forward[k])
        return min(self.workspace, max(LOOK_BYTES, max(during) - self.saved[-1]))

    def stored(self) -> _Halves:
        """Returns the bytes of the halves where each layer keeps what its weights ask for, and no gradient waits."""
        held = [cost.held_bytes for cost in self._costs]
        _, first_units, second_units, _ = self._units
        first = [now + sum(held[k + 1 :]) + first_units[k] for k, now in enumerate(self._during)]
        second = [
            sum(held[: k + 1]) + cost.workspace_bytes + second_units[k] for k, cost in enumerate(self._costs)
        ]
        return _Halves(sum(held), max(first), max(second))

    def walked(self, entering: Sequence[Value], returning: int) -> _Halves:
        """Returns the bytes of the halves where the backward walks through the graph, given what enters and what
        returns.
        """
        graph, end = self._graph, self.last + 1
        reuses = reused(graph)
        if not any(value.producer and value.needs_grad for value in entering):
            # nowhere to walk to: the weight half is all of the backward
            below, walked = self.saved[-1] + returning + self._told, [0] * len(self._costs)
            together, soon = max(waiting(reuses, self.first, end, at) for at in range(self.first, end)), 0
        else:
            weighs, made = weighing(graph), arriving_at_made(graph, self._size_of)
            at = [k for k in range(len(self._costs)) if weighs[self.first + k]]
            below = self.saved[at[-1]] if at else 0
            walked = [cost.walked_bytes + made[self.first + k] for k, cost in enumerate(self._costs)]
            together = summed([*reuses, *reused_values(graph, self._size_of)], self.first, end)
            soon = early(reuses, self.first, end)
        return self._walked(below + soon, walked, together, soon)

    def _walked(self, below: int, walked: Sequence[int], together: int, soon: int) -> _Halves:
        """Adds up a walk: nothing is let go until it is over, and then only what lies above all weights."""
        top = self._on_top
        first = [
            self.saved[-1] + LEAF_BYTES + sum(walked[k + 1 :]) + top[k] + self._early[k] + units
            for k, units in enumerate(self._units.first)
        ]
        held = below + LEAF_BYTES + sum(walked)
        second = max(map(sum, zip(top, self._units.second, strict=True)))
        return _Halves(held, max(first) + 2 * soon, held + second + together)


def losses_held(schedule: Schedule) -> int:
    """Returns how many losses a pipe holds until the step ends: one a micro-batch, in the pipe with the most.

    Args: `schedule` tells the pipe of every micro-batch.
    """
    return max(Counter(schedule.pipe_of).values(), default=0)


def copies_of_statistics(holders: int, *, recompute: bool) -> int:
    """Returns how many copies of running statistics a stage of `holders` ranks holds.

    Args: more than one holder keeps the statistics from before the step and adds up what the step brings. To
        `recompute` takes one more copy, since a forward that is done again must leave no trace.
    """
    return 2 * (holders > 1) + recompute


def remembered_bytes(graph: ModelGraph, layers: Sequence[str]) -> int:
    """Returns the bytes of buffers that one micro-batch copies for layers that recompute, until its backward is over.

    Copied are the buffers that the layers both write and read, since a kernel may have saved them again.

    Args: `layers` are names.
    """
    names = set(layers)
    return sum(row.bytes for row in graph.buffers if row.remembered and names.intersection(row.users))


def step_bytes(profile: Profile, layers: Sequence[str], key: CostKey, *, losses: int, copies: int) -> int:
    """Returns what a stage holds throughout a step beside its state, however many micro-batches are in flight.

    Args: `losses` and `copies` are counts, from `losses_held` and `copies_of_statistics`. Buffers that the forward
        also reads have no such copies, but `remembered_bytes`.
    """
    graph, names = profile.graph, set(layers)
    statistics = [row for row in graph.buffers if row.mutated and not row.remembered]
    copied = sum(row.bytes for row in statistics if names.intersection(row.users))
    return copies * copied + losses * total_bytes(profile, told_values(graph, layers), key)


def _updated(graph: ModelGraph, kept: Mapping[str, int], name: str) -> int:
    row = graph.parameter[name]
    return kept.get(name, prod(row.shape)) if row.trainable else 0


def update_bytes(optimizer: OptimizerCost, elements: Sequence[int]) -> int:
    """Returns the bytes that an update needs on top of the state, or that squares of gradients need before, for their
    norm.

    Args: `elements` has the size of each trained parameter.
    """
    largest, total = max(elements, default=0), sum(elements)
    made = optimizer.largest_bytes_per_parameter * largest
    made += optimizer.other_bytes_per_parameter * (total - largest)
    return max(round(made), SQUARE_BYTES * min(largest, SQUARED_ELEMENTS))
