"""Prices layers where samples are cut in space, for one choice of grids.

A layer on shards takes the time and the bytes that the profile has of the largest shard. Other layers take those of
whole samples: of a rank's share of the samples, or of all, which every rank of a group computes alike. Halos, sums,
gathers and messages when samples are re-split are added to the layer that waits for them. Messages that travel while
a layer computes cost what exceeds the computation.

Where a group has tensors in parts instead, its rank with most to do has a profile of its own: `planner.group`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from planner.arrays import NS_PER_S, IntArray
from planner.cluster import NOISE, Group
from planner.cost.shared_weights import Rectangles
from planner.cost.tables import Tables, tables
from planner.cost.tables import price as price_whole
from planner.group import MeshOnCluster, on_group
from planner.layout import STATE_PREFIX, Mesh, Wish, cut_of
from planner.model import Layer, ModelGraph
from planner.plan import Regrid
from planner.profile import CostKey, LayerCost, Profile, Seconds
from planner.schedule import Kind
from planner.spatial import Cost, Price, Traffic, price

Grid = tuple[int, ...]


class GridChoice(NamedTuple):
    """The grid that samples are cut by, and where in the model samples become whole, shared or cut otherwise."""

    grid: Grid = ()
    whole_from: int = 0  # the layer before which shards are gathered; 0: where the rules for shards end
    then: Grid = ()  # another grid, of at most as many parts, from the layer `then_from` on
    then_from: int = 0
    shared: bool = False  # from `whole_from` on each rank has its share of the samples, not all of them
    mesh: Mesh = ()  # ranks along each axis of a group that has tensors in parts; never with a grid
    cut: tuple[Wish, ...] = ()  # what that group cuts

    @property
    def ranks(self) -> int:
        """Returns the number of ranks that work on one micro-batch."""
        return prod(self.grid) * prod(self.mesh)

    def at(self, layer: int) -> Grid:
        """Returns the grid at a layer.

        Args: `layer` is a position.
        """
        return self.then if self.then and layer >= self.then_from else self.grid


@dataclass(frozen=True)
class Prices:
    """A model's prices under every choice asked for so far; calling it with a choice gives its price."""

    graph: ModelGraph
    refused: dict[Grid, str] = field(default_factory=dict)  # why a grid's shards end early
    unshared: dict[str, str] = field(default_factory=dict)  # why samples are not shared from a layer on
    _known: dict[GridChoice, Price] = field(default_factory=dict)

    def __call__(self, choice: GridChoice) -> Price:
        if choice not in self._known:
            layers = self.graph.layers
            whole = layers[choice.whole_from].name if choice.whole_from else ""
            before, shares = ([], whole) if choice.shared else ([whole] if whole else [], "")
            turns = {layers[choice.then_from].name: choice.then} if choice.then else {}
            self._known[choice] = price(self.graph, choice.grid, before, turns, shares)
        return self._known[choice]


def row_of(choice: GridChoice, index: int, layer: Layer, found: Price, setting: CostKey) -> CostKey:
    """Returns the profile's key for a layer on shards or on a share of the samples.

    Args: `index` is the layer's position, `found` the price of the choice, `setting` the one of whole samples.
    """
    if layer.name in found.shared:
        return setting._replace(signature=layer.signature, split=(), micro=setting.micro // choice.ranks)
    return setting._replace(signature=layer.signature, split=choice.at(index))


def shown(grid: Grid) -> str:
    """Returns a grid as text, such as 2x2; 1 for whole samples.

    Args: `grid` has the parts along each dim.
    """
    return "x".join(map(str, grid)) or "1"


def stage_of(
    choice: GridChoice, span: tuple[int, int], names: Sequence[str]
) -> tuple[Grid, str, tuple[Regrid, ...]]:
    """Returns how a stage's samples lie, as a plan says it.

    Args: `span` has the stage's first layer and the layer after its last; `names` are the names of all layers.
    Returns: the grid, empty where all samples are whole; the layer before which shards are gathered, empty where
        there is none in this stage; and where in the stage samples are re-split or shared.
    """
    first, end = span
    turn, whole = choice.then_from, choice.whole_from
    if whole and first >= whole and not choice.shared:
        return (), "", ()
    regrid = [Regrid(before=names[turn], spatial=choice.then, samples=False)] if first < turn < end else []
    if choice.shared:
        regrid += [Regrid(before=names[whole], spatial=(), samples=True)] if first <= whole < end else []
        return choice.at(first), "", tuple(regrid)
    return choice.at(first), names[whole] if first < whole < end else "", tuple(regrid)


def sharded(
    profile: Profile, setting: CostKey, choice: GridChoice, found: Price, group: Group, *, overlap: bool
) -> Tables:
    """Returns the tables of a choice.

    Args: `setting` is the one of whole samples; `found` is the price of the choice; `group` has what messages take.
        With `overlap`, halos travel while layers compute, except in backwards in halves.
    """
    graph = profile.graph
    whole = setting._replace(split=())
    costs = []
    for i, layer in enumerate(graph.layers):
        cost = found.layers.get(layer.name, _NOTHING)
        key = row_of(choice, i, layer, found, whole) if cost.on_shards else whole
        row = profile.cost(layer.name, key)
        scale = Fraction(setting.micro, found.samples) * _narrower(profile, layer.inputs, whole)
        costs.append(_priced(_largest(row, cost), cost, scale, group, overlap=overlap))
    sizes = {
        value.name: ceil(profile.value_bytes(value.name, whole) * found.values[value.name] - NOISE)
        for value in graph.values
    }
    return tables(profile, whole._replace(split=choice.grid), costs, sizes, regridded=choice[1:])


def least_work_ns(profile: Profile, setting: CostKey, choice: GridChoice, prices: Prices) -> IntArray:
    """Returns what each layer of a choice computes at least for one micro-batch, by the shorter kind of backward.

    Messages, and what else a layer waits for, come on top of it in the tables of the choice.

    Args: as those of `sharded`; a choice without a grid is whole samples.
    """
    whole, found = setting._replace(split=()), prices(choice) if choice.grid else None
    least = []
    for i, layer in enumerate(profile.graph.layers):
        cost = _NOTHING if found is None else found.layers.get(layer.name, _NOTHING)
        key = row_of(choice, i, layer, found, whole) if found is not None and cost.on_shards else whole
        row = _largest(profile.cost(layer.name, key), cost)
        passes = row.forward, row.backward, row.input_grad, row.weight_grad
        forward, backward, *halves = (round(each.median * NS_PER_S) for each in passes)
        least.append(forward + min(backward, sum(halves)))
    return np.array(least)


def shared_tables(
    profile: Profile,
    setting: CostKey,
    choice: GridChoice,
    prices: Prices,
    group: Group | MeshOnCluster,
    overlap: bool,
) -> Tables:
    """Returns the tables of any choice: `group` and `overlap` are those of `sharded` on a grid."""
    if isinstance(group, MeshOnCluster):
        found = cut_tables(profile, setting, choice, group)
    else:
        found = sharded(profile, setting, choice, prices(choice), group, overlap=overlap)
    types = {
        device: shared_tables(own, setting, choice, prices, group, overlap)
        for device, own in profile.by_type.items()
    }
    return replace(found, types=types)


def layer_ns(tables: Tables, kind: Kind, devices: Collection[str]) -> IntArray:
    """Returns what an action of each layer takes on the slowest of some types of devices.

    Args: `devices` count where each type has a profile of its own; elsewhere there is one.
    """
    own = [tables.types[device] for device in devices if device in tables.types]
    slowest: IntArray = np.maximum.reduce([np.diff(each.time_ns[kind]) for each in own or [tables]])
    return slowest


def update_pace(tables: Tables, devices: Collection[str]) -> float:
    """Returns the time of an update on the slowest of some types of devices, as a multiple of the fastest type's."""
    own = [tables.types[device] for device in devices if device in tables.types]
    pairs = [(each.step_ns_per_element, tables.step_ns_per_element) for each in own]
    pairs += [(each.scatter_ns_per_element, tables.scatter_ns_per_element) for each in own]
    return max((slow / fast for slow, fast in pairs if fast), default=1.0)


def cut_tables(profile: Profile, setting: CostKey, choice: GridChoice, machine: MeshOnCluster) -> Tables:
    """Returns the tables of a choice that has tensors in parts.

    Args: `setting` is the one of whole samples; `machine` says where its groups stand.
    Raises: NoRule or BadInput, where the model cannot be cut so.
    """
    found = cut_of(profile.graph, setting.micro, choice.mesh, choice.cut)
    layouts = ((row.name, found.states.get(STATE_PREFIX + row.name)) for row in profile.graph.trained)
    axes = {name: x.cut_axes for name, x in layouts if x is not None and x.cut_axes}
    own = on_group(replace(profile, types={}), setting, found, machine)
    made = price_whole(own, setting, axes)
    return replace(made, regridded=(choice.mesh, choice.cut, machine.places), parted=_parted(own.graph, axes))


def _parted(graph: ModelGraph, axes: Mapping[str, tuple[int, ...]]) -> dict[tuple[int, ...], IntArray]:
    """Returns the gradients of parts by the axes that cut them, [i, j]; without those that other stages use as well.

    Args: `axes` has those of each parameter that is cut, by name.
    """
    found: dict[tuple[int, ...], Rectangles] = {}
    for row in graph.trained:
        if row.name in axes and row.users:
            users, count = [graph.index[name] for name in row.users], len(graph.layers)
            table = found.setdefault(axes[row.name], Rectangles(count))
            table.add((0, min(users) + 1), (max(users) + 1, count + 1), row.bytes)
    return {each: found[each].table for each in sorted(found)}


_NOTHING = Cost(share=1.0, middle=1.0, traffic=Traffic(), on_shards=False, gathered_bytes=0)


def _largest(row: LayerCost, cost: Cost) -> LayerCost:
    """Returns the row with the work of the rank that has most to do, where another rank was profiled."""
    if not cost.on_shards or cost.share == cost.middle:
        return row
    more = cost.share / cost.middle
    times = {name: getattr(row, name) for name in ("forward", "backward", "input_grad", "weight_grad")}
    names = ("own_saved_bytes", "held_bytes", "workspace_bytes", "walked_bytes", "owing_bytes")
    sizes = {name: getattr(row, name) for name in names}
    if row.forward_workspace_bytes is not None:
        sizes["forward_workspace_bytes"] = row.forward_workspace_bytes
    return replace(
        row,
        **{name: replace(time, median=time.median * more) for name, time in times.items()},
        **{name: ceil(size * more) for name, size in sizes.items()},
    )


def _narrower(profile: Profile, values: Sequence[str], key: CostKey) -> Fraction:
    """Returns the bytes of what a layer reads in a precision, divided by the bytes that were captured."""
    captured = sum(profile.graph.value[name].bytes(key.micro) for name in values)
    return Fraction(sum(profile.value_bytes(x, key) for x in values), captured) if captured else Fraction(1)


def _priced(row: LayerCost, cost: Cost, scale: Fraction, group: Group, *, overlap: bool) -> LayerCost:
    forward, hidden = _forward_ns(cost.traffic, scale, group)
    backward, back_hidden = _backward_ns(cost.traffic, scale, group)
    copied = ceil((cost.resplit_bytes + (0 if cost.on_shards else cost.gathered_bytes)) * scale)
    alone = row.forward_workspace_bytes
    return replace(
        row,
        forward=_longer(row.forward, forward + _exposed(hidden, row.forward, overlap)),
        backward=_longer(row.backward, backward + _exposed(back_hidden, row.backward, overlap)),
        input_grad=_longer(row.input_grad, backward + back_hidden),
        own_saved_bytes=row.own_saved_bytes + copied,
        held_bytes=row.held_bytes + (copied if row.held_bytes else 0),
        workspace_bytes=row.workspace_bytes + copied,
        forward_workspace_bytes=None if alone is None else alone + copied,
    )


def _longer(time: Seconds, ns: float) -> Seconds:
    return replace(time, median=time.median + ns / NS_PER_S) if ns else time


def _exposed(hidden_ns: float, under: Seconds, overlap: bool) -> float:
    return max(0.0, hidden_ns - under.median * NS_PER_S) if overlap else hidden_ns


def _forward_ns(sent: Traffic, scale: Fraction, group: Group) -> tuple[float, float]:
    """Returns the nanoseconds of messages that a layer waits for, and of those that may travel meanwhile."""
    waited = sent.halo_bytes - sent.hidden_bytes + sent.gather_bytes + sent.resplit_bytes
    open_ns = _wire_ns(waited * scale, sent.rounds - sent.hidden_rounds, group)
    sums_ns = _sums_ns(sent.reduced_bytes * max(scale, Fraction(1)), sent.reductions, group)
    return open_ns + sums_ns, _wire_ns(sent.hidden_bytes * scale, sent.hidden_rounds, group)


def _backward_ns(sent: Traffic, scale: Fraction, group: Group) -> tuple[float, float]:
    waited = sent.back_bytes - sent.back_hidden_bytes + sent.back_resplit_bytes
    open_ns = _wire_ns(waited * scale, sent.back_rounds - sent.back_hidden_rounds, group)
    sums_ns = _sums_ns(sent.reduced_backward_bytes * max(scale, Fraction(1)), sent.back_reductions, group)
    return open_ns + sums_ns, _wire_ns(sent.back_hidden_bytes * scale, sent.back_hidden_rounds, group)


def _wire_ns(size: Fraction, rounds: int, group: Group) -> float:
    return rounds * group.latency_ns + float(size) * group.byte_ns


def _sums_ns(size: Fraction, count: int, group: Group) -> float:
    """Returns the nanoseconds of sums of equal size, one after the other."""
    return count * float(group.sum.ns(np.array([ceil(size / count)]))[0]) if count else 0.0
