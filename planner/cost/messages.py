"""Says which Values go from stage to stage and how many bytes messages carry, for any cut.

First all cuts at once, as arrays. Then one stage, as lists of Values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.model import ModelGraph, Value


@dataclass(frozen=True, kw_only=True)
class Edges:
    """The pairs of a Value and a consumer as columns: where the Value was made, who reads it before, who reads it.

    Layers are positions. `previous` is the consumer before, or the producer for the first consumer.
    """

    value: IntArray
    made: IntArray
    previous: IntArray
    consumer: IntArray
    bytes: IntArray
    backward: BoolArray  # a gradient flows back

    def between(self, low: int, high: int) -> Edges:
        """Returns the edges that some boundary in a range cuts.

        Args: `low` and `high` are the first and the last boundary; boundary b is before layer b.
        """
        chosen = (self.previous < high) & (self.consumer >= low)
        return Edges(**{column.name: getattr(self, column.name)[chosen] for column in fields(self)})


@dataclass(frozen=True, eq=False, kw_only=True)
class Talk:
    """Which neighbouring stages talk: the later one reads what the earlier one made, and hands a gradient back."""

    edges: Edges
    layers: int

    @cached_property
    def ends(self) -> IntArray:
        """Returns [i, j], the least end of a stage from layer j on that talks with the stage from i to j.

        Returns: more than the number of layers where no stage does.
        """
        never = self.layers + 1
        ahead: IntArray = np.full((never, never), never, np.int64)
        back = ahead.copy()
        edges = self.edges
        columns = (edges.made, edges.previous, edges.consumer, edges.bytes, edges.backward)
        for made, previous, consumer, size, backward in zip(*(c.tolist() for c in columns), strict=True):
            for table, first, counts in ((ahead, made, size), (back, previous, size and backward)):
                if counts:
                    own = table[: first + 1, previous + 1 : consumer + 1]
                    np.minimum(own, consumer + 1, out=own)
        return np.maximum(ahead, back)

    def beside(self, first: bool, last: bool) -> tuple[IntArray, IntArray]:
        """Returns the least begin and the largest end of two neighbours that do not talk, by the layer between them.

        Args: whether they are the `first` two stages, or the `last`.
        Returns: [layer] twice; a begin no less than the layer where they cannot be.
        """
        ends, at = self.ends, np.arange(self.layers)
        least = np.full(len(at), self.layers) if last else at + 1
        begins, most = at.copy(), np.zeros_like(at)
        for j in at[1:].tolist():
            widest = 0 if first else j - 1
            if ends[widest, j] > least[j]:
                begins[j] = 0 if first else int(np.searchsorted(ends[:j, j], least[j], side="right"))
                most[j] = min(self.layers, int(ends[widest, j]) - 1)
        return begins, most

    @cached_property
    def sure(self) -> BoolArray:
        """Returns by boundary whether the stages beside it talk in every cut, as those do at both ends of a model."""
        at = np.arange(1, self.layers)
        found: BoolArray = np.ones(self.layers + 1, np.bool_)
        found[at] = self.ends[at - 1, at] == at + 1
        return found

    def everywhere(self, cuts: IntArray, boundaries: Sequence[int]) -> BoolArray:
        """Returns [cut]: whether the neighbours beside some boundaries talk.

        Args: `cuts` is [cut, boundary], and `boundaries` are those that count, by number.
        """
        if self.sure.all() or not boundaries:
            return np.ones(len(cuts), np.bool_)
        at = np.array(boundaries)
        found: BoolArray = np.asarray((self.ends[cuts[:, at - 1], cuts[:, at]] <= cuts[:, at + 1]).all(1))
        return found

    def always(self, stages: int) -> bool:
        """Returns whether all neighbours talk in every cut into so many stages; False where that is not plain."""
        at, last = np.arange(1, self.layers), self.layers
        if stages == 2:
            return bool((self.ends[0, at] <= last).all())
        return stages < 2 or bool(self.sure.all())

    @cached_property
    def least_bytes(self) -> IntArray:
        """Returns what stages that talk across a boundary send at least, [act or grad, boundary] bytes."""
        edges, found = self.edges, np.zeros((2, self.layers + 1), np.int64)
        for way, sent in enumerate((edges.bytes > 0, edges.backward & (edges.bytes > 0))):
            near = sent & (edges.consumer == edges.made + 1)
            found[way] = np.bincount(edges.consumer[near], edges.bytes[near], self.layers + 1)
            for at in np.flatnonzero(found[way] == 0).tolist():
                crossing = sent & (edges.previous < at) & (at <= edges.consumer)
                found[way, at] = edges.bytes[crossing].min() if crossing.any() else 0
        return found

    @cached_property
    def least(self) -> int:
        """Returns the least bytes that neighbours who talk hand to each other; 0 where none do."""
        every = self.least_bytes.min(0)[1:-1]
        return int(every[every > 0].min()) if (every > 0).any() else 0


def edges(graph: ModelGraph, size_of: Mapping[str, int]) -> Edges:
    """Returns the edges of all Values that a layer makes.

    Args: `size_of` has the bytes of every Value.
    """
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


def hop_bytes(edges: Edges, layers: int, cuts: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the messages that any of the cuts has, and how many bytes each carries in each cut.

    Activations go straight to every later stage that reads them. Gradients go from each reading stage to the one
    before it that reads or made the Value.

    Args: `cuts` is `[cut, boundary]` with 0 first and the number of layers last.
    Returns: the cells that are used, as flat positions in `[act or grad, sender, receiver]`; and `[cut, cell]`
        bytes.
    """
    depth = cuts.shape[1] - 1
    stage = stage_of(cuts, layers)
    made, before, here = stage[:, edges.made], stage[:, edges.previous], stage[:, edges.consumer]
    row, act = np.nonzero(here > before)
    forward = made[row, act] * depth + here[row, act]
    back = edges.backward[act]
    backward = (depth * depth + here[row, act] * depth + before[row, act])[back]
    cell = np.concatenate([forward, backward])
    owner = np.concatenate([row, row[back]])
    weight = np.concatenate([edges.bytes[act], edges.bytes[act[back]]])
    present: BoolArray = np.zeros(2 * depth * depth, np.bool_)
    present[cell] = True
    cells = np.flatnonzero(present)
    column = np.cumsum(present)[cell] - 1
    flat = np.bincount(owner * len(cells) + column, weights=weight, minlength=len(cuts) * len(cells))
    return cells, flat.astype(np.int64).reshape(len(cuts), len(cells))


def stage_of(cuts: IntArray, layers: int) -> IntArray:
    """Returns `[cut, layer]`, the stage that each layer is in.

    Args: `cuts` is `[cut, boundary]` with 0 first and the number of layers last.
    """
    rows = np.arange(len(cuts))[:, None] * (layers + 1)
    opens = np.bincount((rows + cuts[:, 1:-1]).ravel(), minlength=len(cuts) * (layers + 1))
    return opens.reshape(len(cuts), layers + 1).cumsum(1)[:, :layers]


# One stage: layers from `first` to `last`, by their positions


def entering_values(graph: ModelGraph, layers: Sequence[str]) -> list[Value]:
    """Returns the Values that a stage reads and does not make: from other stages or from the batch, by name.

    Args: `layers` are the names of the stage's layers.
    """
    made = {name for layer in layers for name in graph.layer[layer].outputs}
    read = {name for layer in layers for name in graph.layer[layer].inputs}
    return [graph.value[name] for name in sorted(read - made)]


def last_use(graph: ModelGraph, value: Value) -> int:
    """Returns the position of the last layer that reads a Value; -1 if no layer reads the Value.

    Args: `value` belongs to `graph`.
    """
    return max((graph.index[name] for name in value.consumers), default=-1)


def passing_values(graph: ModelGraph, first: int, at: int) -> list[Value]:
    """Returns the Values that a stage makes before one of its layers and that a later layer reads.

    Args: `first` is the stage's first layer, `at` the layer that the Values pass by.
    """
    made = [graph.value[name] for layer in graph.layers[first:at] for name in layer.outputs]
    return [value for value in made if last_use(graph, value) > at]


def added_values(graph: ModelGraph, keepers: Mapping[str, int], first: int, at: int) -> list[Value]:
    """Returns the passing Values of which a layer adds its gradient to the gradient of a later reader.

    Both gradients stay beside their sum. Left out are Values that this layer is the first to keep: it lets go of
    them, and the sum takes their room.

    Args: `keepers` has the first layer that keeps each Value; `first` and `at` are those of `passing_values`.
    """
    name = graph.layers[at].name
    passing = passing_values(graph, first, at)
    return [v for v in passing if name in v.consumers and v.needs_grad and keepers.get(v.name) != at]


def early_values(graph: ModelGraph, first: int, at: int, last: int) -> list[Value]:
    """Returns the Values from before a stage whose gradient waits while a layer of the stage runs backwards.

    A later layer of the stage reads the Value. A Value stands twice where the running layer adds another gradient.

    Args: `first` and `last` are the stage's layers, `at` is the one that runs.
    """
    name = graph.layers[at].name
    made = [graph.value[x] for layer in graph.layers[:first] for x in layer.outputs]
    late = [v for v in made if v.needs_grad and any(at < graph.index[x] <= last for x in v.consumers)]
    return late + [v for v in late if name in v.consumers]


def leaving_values(graph: ModelGraph, first: int, last: int) -> list[Value]:
    """Returns the Values that a stage makes and a later stage reads.

    Args: `first` and `last` are the stage's layers.
    """
    made = [graph.value[name] for layer in graph.layers[first : last + 1] for name in layer.outputs]
    return [value for value in made if last_use(graph, value) > last]


def returning_values(
    graph: ModelGraph, entering: list[Value], leaving: list[Value], last: int
) -> list[Value]:
    """Returns the Values whose gradients come from later stages: sent Values, and inputs that later stages read as
    well.

    Args: `entering` and `leaving` are the Values of the stage, `last` is its last layer.
    """
    shared = [value for value in entering if value.producer and last_use(graph, value) > last]
    return [value for value in (*leaving, *shared) if value.needs_grad]


def is_read_at(graph: ModelGraph, value: Value, at: int) -> bool:
    """Returns whether a layer reads a Value.

    Args: `at` is the layer's position.
    """
    return any(graph.index[name] == at for name in value.consumers)


def crossing_values(graph: ModelGraph, first: int) -> list[Value]:
    """Returns the Values made before a layer and read by it or later, of which gradients come back.

    Args: `first` is the layer's position.
    """
    made = [graph.value[name] for layer in graph.layers[:first] for name in layer.outputs]
    return [value for value in made if value.needs_grad and last_use(graph, value) >= first]


def is_far(graph: ModelGraph, value: Value, first: int) -> bool:
    """Returns whether a Value that needs a gradient may come from a stage that is not the one before.

    Args: `first` is the reading stage's first layer.
    """
    return bool(value.producer) and value.needs_grad and graph.index[value.producer] < first - 1
