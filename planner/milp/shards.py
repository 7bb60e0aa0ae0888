"""Samples cut in space: which grids there are to choose from, and what every layer then costs.

A choice is a grid and where samples are whole again. Layers on shards take the time and the bytes that the profile
has of the largest shard, others those of whole samples, which every rank of a group computes alike. Halos, sums and
gathers are added to the layer that waits for them; what travels while a layer computes costs what exceeds that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, prod
from typing import NamedTuple

import numpy as np

from planner.cost import NS, Tables, tables
from planner.errors import BadInput
from planner.halo.call import NoRule
from planner.halo.price import Cost, Price, Traffic, price
from planner.milp.fixed import Pins
from planner.milp.mesh import NOISE, Group
from planner.model import ModelGraph
from planner.profile import CostKey, LayerCost, Profile, Seconds

EVERY = 24  # layers up to which a gather is considered before each of them
_FEW = 6  # places for a gather, in larger models

Grid = tuple[int, ...]


class Choice(NamedTuple):
    grid: Grid = ()
    whole_from: int = 0  # the layer before which shards are gathered; 0 is where their rules end

    @property
    def ranks(self) -> int:
        return prod(self.grid)


@dataclass(frozen=True)
class Prices:
    """Of one model, under every choice asked for so far."""

    graph: ModelGraph
    refused: dict[Grid, str] = field(default_factory=dict)  # why a grid's shards end early
    _known: dict[Choice, Price] = field(default_factory=dict)

    def __call__(self, choice: Choice) -> Price:
        if choice not in self._known:
            before = [self.graph.layers[choice.whole_from].name] if choice.whole_from else []
            self._known[choice] = price(self.graph, choice.grid, before)
        return self._known[choice]


def choices(profile: Profile, setting: CostKey, prices: Prices) -> tuple[Choice, ...]:
    """Every grid that was profiled with these settings, gathered wherever that is exact."""
    found: list[Choice] = []
    for key in profile.shards:
        if key._replace(split=()) == setting._replace(split=()) and prod(key.split) > 1:
            found += (each for each in _of_grid(prices, key.split) if _possible(profile, key, prices(each)))
    return tuple(found)


def _of_grid(prices: Prices, grid: Grid) -> Iterator[Choice]:
    """Gathered as late as can be, and before every earlier layer on shards but the first; in large models a few."""
    last = _latest(prices, grid)
    if last is None:
        return
    layers = prices(last).layers
    names = [layer.name for layer in prices.graph.layers]
    cut = [i for i, name in enumerate(names) if name in layers and layers[name].on_shards][1:]
    step = -(-len(cut) // _FEW) if len(names) > EVERY else 1
    yield last
    yield from (Choice(grid, i) for i in cut[::step])


def _latest(prices: Prices, grid: Grid) -> Choice | None:
    """Where the rules end the shards, else before the first layer that has none; None where that is the first."""
    try:
        prices(Choice(grid))
    except NoRule as refused:
        prices.refused[grid] = str(refused)
        end = prices.graph.index.get(refused.where, 0)
        return Choice(grid, end) if end else None
    return Choice(grid)


def _possible(profile: Profile, key: CostKey, found: Price) -> bool:
    """Every layer on shards was profiled, and no parameter is used on shards here and on whole samples there."""
    graph = profile.graph
    on_shards = {name for name, cost in found.layers.items() if cost.on_shards}
    rows = {layer.signature for layer in graph.layers if layer.name in on_shards}
    if not on_shards or any(key._replace(signature=each) not in profile.costs for each in rows):
        return False
    return not any(0 < len(on_shards.intersection(p.users)) < len(set(p.users)) for p in graph.parameters)


def sharded(
    profile: Profile, setting: CostKey, choice: Choice, found: Price, group: Group, *, overlap: bool
) -> Tables:
    """Tables of a choice. With `overlap` halos travel while layers compute, as in backward passes that stay whole."""
    graph = profile.graph
    whole = setting._replace(split=())
    costs = []
    for layer in graph.layers:
        cost = found.layers.get(layer.name, _NOTHING)
        row = profile.cost(layer.name, whole._replace(split=choice.grid) if cost.on_shards else whole)
        scale = Fraction(setting.micro, found.samples) * _narrower(profile, layer.inputs, whole)
        costs.append(_priced(_largest(row, cost), cost, scale, group, overlap=overlap))
    sizes = {
        value.name: _held(profile.value_bytes(value.name, whole), found.values[value.name])
        for value in graph.values
    }
    return tables(profile, whole._replace(split=choice.grid), costs, sizes, whole_from=choice.whole_from)


_NOTHING = Cost(share=1.0, middle=1.0, traffic=Traffic(), on_shards=False, gathered_bytes=0)


def _largest(row: LayerCost, cost: Cost) -> LayerCost:
    """The rank that has most to do, where another one was profiled."""
    if not cost.on_shards or cost.share == cost.middle:
        return row
    more = cost.share / cost.middle
    times = {name: getattr(row, name) for name in ("forward", "backward", "input_grad", "weight_grad")}
    names = ("own_saved_bytes", "held_bytes", "workspace_bytes", "walked_bytes")
    sizes = {name: getattr(row, name) for name in names}
    return replace(
        row,
        **{name: replace(time, median=time.median * more) for name, time in times.items()},
        **{name: ceil(size * more) for name, size in sizes.items()},
    )


def _held(size: int, share: float) -> int:
    return ceil(size * share - NOISE)


def _narrower(profile: Profile, values: Sequence[str], key: CostKey) -> Fraction:
    """Bytes of what a layer reads in a precision, against those that were captured."""
    captured = sum(profile.graph.value[name].bytes(key.micro) for name in values)
    return (
        Fraction(sum(profile.value_bytes(name, key) for name in values), captured)
        if captured
        else Fraction(1)
    )


def _priced(row: LayerCost, cost: Cost, scale: Fraction, group: Group, *, overlap: bool) -> LayerCost:
    forward, hidden = _forward_ns(cost.traffic, scale, group)
    backward, back_hidden = _backward_ns(cost.traffic, scale, group)
    copied = 0 if cost.on_shards else ceil(cost.gathered_bytes * scale)
    return replace(
        row,
        forward=_longer(row.forward, forward + _exposed(hidden, row.forward, overlap)),
        backward=_longer(row.backward, backward + _exposed(back_hidden, row.backward, overlap)),
        input_grad=_longer(row.input_grad, backward + back_hidden),
        own_saved_bytes=row.own_saved_bytes + copied,
        held_bytes=row.held_bytes + (copied if row.held_bytes else 0),
        workspace_bytes=row.workspace_bytes + copied,
    )


def _longer(time: Seconds, ns: float) -> Seconds:
    return replace(time, median=time.median + ns / NS)


def _exposed(hidden_ns: float, under: Seconds, overlap: bool) -> float:
    return max(0.0, hidden_ns - under.median * NS) if overlap else hidden_ns


def _forward_ns(sent: Traffic, scale: Fraction, group: Group) -> tuple[float, float]:
    """What a layer waits for, and what may travel meanwhile."""
    waited = sent.halo_bytes - sent.hidden_bytes + sent.gather_bytes
    open_ns = _wire_ns(waited * scale, sent.rounds - sent.hidden_rounds, group)
    sums_ns = _sums_ns(sent.reduced_bytes * max(scale, Fraction(1)), sent.reductions, group)
    return open_ns + sums_ns, _wire_ns(sent.hidden_bytes * scale, sent.hidden_rounds, group)


def _backward_ns(sent: Traffic, scale: Fraction, group: Group) -> tuple[float, float]:
    waited = sent.back_bytes - sent.back_hidden_bytes
    open_ns = _wire_ns(waited * scale, sent.back_rounds - sent.back_hidden_rounds, group)
    sums_ns = _sums_ns(sent.reduced_backward_bytes * max(scale, Fraction(1)), sent.back_reductions, group)
    return open_ns + sums_ns, _wire_ns(sent.back_hidden_bytes * scale, sent.back_hidden_rounds, group)


def _wire_ns(size: Fraction, rounds: int, group: Group) -> float:
    return rounds * group.latency_ns + float(size) * group.byte_ns


def _sums_ns(size: Fraction, count: int, group: Group) -> float:
    """Sums one after the other, of about equal size."""
    return count * float(group.sum.ns(np.array([ceil(size / count)]))[0]) if count else 0.0


def asked(found: Sequence[Choice], prices: Prices, pinned: Pins) -> tuple[Choice, ...]:
    """Those of a pinned degree or grid, and gather; BadInput where that was not profiled, or has no rule."""
    chosen = tuple(
        each
        for each in found
        if pinned.spatial in (None, each.ranks)
        and pinned.grid in (None, each.grid)
        and pinned.gather in (None, _gather(prices.graph, each))
    )
    if not chosen and pinned.spatial is not None:
        known = sorted({each.grid for each in found}, key=lambda grid: (prod(grid), grid))
        why = "".join(
            f"; on {shown(grid)}: {text}"
            for grid, text in prices.refused.items()
            if prod(grid) == pinned.spatial and pinned.grid in (None, grid)
        )
        gathered = f" with a gather at '{pinned.gather or 'end'}'" if pinned.gather is not None else ""
        raise BadInput(
            f"spatial is {shown(pinned.grid or (pinned.spatial,))}{gathered}, but no such split can be had of this profile{why}",
            where="fix",
            allowed=", ".join(["1", *map(shown, known)])
            + "; others once `profile --spatial` has priced them",
        )
    return chosen


def _gather(graph: ModelGraph, choice: Choice) -> str:
    return graph.layers[choice.whole_from].name if choice.whole_from else ""


def shown(grid: Grid) -> str:
    return "x".join(map(str, grid)) or "1"


def stage_of(choice: Choice, span: tuple[int, int], names: Sequence[str]) -> tuple[Grid, str]:
    """Of a stage of layers [i, j): its grid, nothing where all of its samples are whole; and the layer in it before
    which its shards are gathered, nothing where there is none."""
    first, end = span
    if choice.whole_from and first >= choice.whole_from:
        return (), ""
    return choice.grid, names[choice.whole_from] if first < choice.whole_from < end else ""
