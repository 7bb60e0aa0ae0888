"""Lists the discrete choices around a cut, and all combinations that are possible.

A configuration uses whole nodes, or part of one: idle devices never share a node with busy ones of a larger plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Literal, NamedTuple

from planner import limits
from planner.cluster import Cluster, total_devices
from planner.configurations.pins import Held, Pins, Update
from planner.cost import GridChoice
from planner.layout import Mesh, Wish
from planner.schedule import FAMILIES

AxisName = Literal["data", "pipeline", "spatial"]

OUTER_DATA: tuple[AxisName, ...] = ("data", "pipeline", "spatial")
OUTER_PIPELINE: tuple[AxisName, ...] = ("pipeline", "data", "spatial")
SEARCHED = tuple(name for name in FAMILIES if name != "listed")  # `listed` is settings, no order of its own
NO_LIMIT = 1 << 60
Splits = Callable[[int], Sequence[GridChoice]]  # how samples of a micro-batch may be cut in space


@dataclass(frozen=True, kw_only=True, order=True)
class Configuration:
    """Everything discrete about a plan but its cut."""

    family: str
    data: int
    workers: int
    pairs: int
    chunks: int
    micro: int
    micros: int
    recompute: bool
    shard: bool
    axes: tuple[AxisName, ...]
    update: Update = "barrier"
    grid: tuple[int, ...] = ()  # shards of each sample along its spatial dims; () is whole samples
    whole_from: int = 0  # the layer before which shards are gathered; 0 is where their rules end
    then: tuple[int, ...] = ()  # shards of each sample from layer `then_from` on; () is `grid`
    then_from: int = 0
    shared: bool = False  # whether ranks share whole samples from `whole_from` on
    mesh: Mesh = ()  # ranks along each axis of a group that has tensors in parts
    cut: tuple[Wish, ...] = ()  # what that group cuts
    listed: str = ""  # the name of a rescheduled order; empty is the generated one
    mirrored: bool = False  # whether the first stage is on the last devices
    sparing: bool = False  # only stages that would not fit otherwise recompute; `recompute`: all do
    chosen: tuple[int, ...] = ()  # just these stages recompute
    held: Held = ""  # what replicas share by element besides state; `shard`: state by whole parameters
    ranks: int = 0  # replicas that hold one copy of it among them

    def __hash__(self) -> int:
        """Returns the hash of all fields, worked out once: a search asks for it some hundred times."""
        if (known := self.__dict__.get("_hash")) is None:
            known = hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))
            object.__setattr__(self, "_hash", known)
        return int(known)

    @cached_property
    def spatial(self) -> int:
        """Returns how many ranks work on one micro-batch together."""
        return prod(self.grid) * prod(self.mesh)

    @property
    def stages(self) -> int:
        """Returns the number of stages."""
        return self.workers * self.chunks

    @property
    def pipes(self) -> int:
        """Returns the number of pipes: 1, or two for each Chimera pair."""
        return 2 * self.pairs if FAMILIES[self.family].paired else 1

    @property
    def devices(self) -> int:
        """Returns the number of devices."""
        return self.data * self.workers * self.spatial

    @property
    def holders(self) -> int:
        """Returns how many copies of a stage's parameters there are, over all replicas, spatial ranks and pipes."""
        return self.data * self.spatial * self.pipes

    @property
    def updaters(self) -> int:
        """Returns among how many ranks the updates of a stage are shared."""
        return self.holders if self.shard else max(1, self.ranks)

    @property
    def hands_on(self) -> bool:
        """Returns whether updated parameters are handed round after an update."""
        return self.shard or self.held == "gradients"

    @property
    def sharing(self) -> tuple[Held, int]:
        """Returns everything that the bytes of a stage depend on of how replicas share it."""
        return self.held, self.updaters

    def __str__(self) -> str:
        extra = [f"pairs {self.pairs}"] if FAMILIES[self.family].paired else []
        extra += [f"chunks {self.chunks}"] if self.chunks > 1 else []
        extra += ["recompute"] if self.recompute else []
        extra += ["recompute where needed"] if self.sparing else []
        extra += [f"recompute in stages {', '.join(map(str, self.chosen))}"] if self.chosen else []
        extra += ["sharded optimizer"] if self.shard else []
        extra += [f"{self.held} over {self.ranks}"] if self.held else []
        space = f" x spatial {'x'.join(map(str, self.grid))}" if self.grid else ""
        space += f" x group {'x'.join(map(str, self.mesh))}" if self.mesh else ""
        extra += [f"{'x'.join(map(str, self.then))} from layer {self.then_from} on"] if self.then else []
        how = "shared" if self.shared else "whole"
        extra += [f"{how} from layer {self.whole_from} on"] if self.whole_from else []
        extra += ["first stage on the last devices"] if self.mirrored else []
        extra += ["order listed anew"] if self.listed else []
        inner = f", {self.axes[-2]} innermost" if self.data > 1 and self.workers > 1 else ""
        base = f"{self.family} data {self.data} x pipeline {self.workers}{space}, micro-batch {self.micro} x {self.micros}"
        return ", ".join([base, *extra]) + inner


def shapes(
    cluster: Cluster,
    *,
    layers: int,
    batch: int,
    micros: Sequence[int],
    pinned: Pins,
    splits: Splits = lambda micro: (GridChoice(),),
) -> Iterator[Configuration]:
    """Yields every configuration that the pins allow and the devices can hold, whatever its memory.

    Args: `layers` counts layers, `batch` samples; `micros` are the micro-batches that may be used.
    Yields: configurations, by micro-batch in the order of `micros`.
    """
    for group in groups(cluster, batch, micros, pinned, splits):
        yield from of_group(cluster, group, layers, batch, pinned)


class SplitGroup(NamedTuple):
    """What configurations have in common whose samples lie alike."""

    micro: int
    data: int
    split: GridChoice


Groups = Iterator[SplitGroup]
Configurations = Iterator[Configuration]


def groups(cluster: Cluster, batch: int, micros: Sequence[int], pinned: Pins, splits: Splits) -> Groups:
    """Yields the groups of configurations that the pins allow; arguments are those of `shapes`."""
    total = min(total_devices(cluster), pinned.devices or NO_LIMIT)
    for micro in micros:
        if pinned.micro not in (None, micro) or batch % micro:
            continue
        for data in _divisors(batch // micro, total):
            yield from (
                SplitGroup(micro, data, x) for x in (splits(micro) if pinned.data in (None, data) else ())
            )


def of_group(cluster: Cluster, group: SplitGroup, layers: int, batch: int, pinned: Pins) -> Configurations:
    """Yields the configurations of a group; the other arguments are those of `shapes`."""
    micro, data, split = group
    micros, near, lies = batch // micro // data, split.ranks, split._asdict()
    replicas, total = data * near, min(total_devices(cluster), pinned.devices or NO_LIMIT)
    deepest = min(layers, total // replicas, limits.DEEPEST)
    depths = range(1, deepest + 1) if pinned.pipeline is None else [pinned.pipeline]
    names = pinned.schedules or SEARCHED
    for workers in depths:
        if workers * replicas > total or not _whole_nodes(cluster, workers * replicas):
            continue
        for axes in _axis_orders(cluster, data, workers):
            for family, pairs, chunks in _variants(names, workers, micros, layers, pinned):
                if pinned.stages is not None and workers * chunks != len(pinned.stages):
                    continue
                if family == "overlap" and not _overlaps(workers, chunks * micros, near, pinned):
                    continue
                if pinned.held and not can_share(data, 1 if split.mesh else near, pinned.ranks or data):
                    continue
                every = product(_free(pinned.recompute), _free(pinned.shard), _directions(cluster, workers))
                for recompute, shard, mirrored in every:
                    if shard and replicas * (2 * pairs if FAMILIES[family].paired else 1) == 1:
                        continue
                    yield Configuration(
                        family=family,
                        data=data,
                        workers=workers,
                        pairs=pairs,
                        chunks=chunks,
                        micro=micro,
                        micros=micros,
                        recompute=recompute,
                        shard=shard,
                        axes=axes,
                        update=pinned.update,
                        **lies,
                        mirrored=mirrored,
                        held=pinned.held or "",
                        ranks=(pinned.ranks or data) if pinned.held else 0,
                    )


def can_share(data: int, spatial: int, ranks: int) -> bool:
    """Returns whether replicas may share gradients or parameters by element; the runtime asks the same of a plan.

    Args: `data` is a degree, and so is `spatial` of samples in shards; `ranks` share one copy.
    """
    return ranks > 1 and data % ranks == 0 and spatial == 1


def _directions(cluster: Cluster, workers: int) -> tuple[bool, ...]:
    """Returns on which ends of the devices the first stage may be, as values of `mirrored`.

    It matters where devices differ: of paired pipes, too, since one may carry more micro-batches.
    """
    return (False,) if _alike(cluster) or workers == 1 else (False, True)


def _alike(cluster: Cluster) -> bool:
    return len({(g.device, g.memory_bytes, g.margin_bytes, g.rates) for g in cluster.nodes}) == 1


def _overlaps(workers: int, forwards: int, near: int, pinned: Pins) -> bool:
    """Returns whether the family `overlap` is considered: it hides sums of replicas, few of them in a pipeline."""
    if pinned.schedules:
        return near == 1
    return (
        pinned.out_of_order is not False and workers == 1 and near == 1 and forwards <= limits.MOST_FORWARDS
    )


def _free(value: bool | None) -> tuple[bool, ...]:
    return (False, True) if value is None else (value,)


def _divisors(number: int, most: int) -> list[int]:
    return [k for k in range(1, min(number, most) + 1) if number % k == 0]


def _whole_nodes(cluster: Cluster, devices: int) -> bool:
    """Returns whether so many devices are a part of the first node, or the first nodes whole."""
    filled = 0
    for group in cluster.groups:
        if filled == devices:
            return True
        if devices < filled + group.devices_per_node:
            return filled == 0
        filled += group.devices_per_node
    return filled == devices


def _axis_orders(cluster: Cluster, data: int, workers: int) -> tuple[tuple[AxisName, ...], ...]:
    """Returns the orders of the axes; which is innermost matters only where devices lie at more than one distance."""
    levels = sum(x is not None for x in (cluster.links.node, cluster.links.rack, cluster.links.cluster))
    if data == 1 or workers == 1 or (levels < 2 and _alike(cluster)):
        return (OUTER_DATA,)
    return (OUTER_DATA, OUTER_PIPELINE)


def _variants(
    names: Sequence[str], workers: int, micros: int, layers: int, pinned: Pins
) -> Iterator[tuple[str, int, int]]:
    """Yields each possible variant as (family, pairs, chunks)."""
    in_one = workers == 1 and pinned.out_of_order is False and not pinned.schedules
    for name in names:
        family = FAMILIES[name]
        if workers == 1 and family.paired:
            continue
        for pairs in _pairs(workers, micros, pinned) if family.paired else (1,):
            for chunks in _chunks(name, pinned):
                stages = workers * chunks
                few = stages <= layers and 4 * stages * micros <= limits.MOST_ACTIONS
                if few and pinned.pairs in (None, pairs) and not (in_one and chunks > 1):
                    yield name, pairs, chunks


def _pairs(workers: int, micros: int, pinned: Pins) -> list[int]:
    """Returns the possible numbers of Chimera pairs; each of the 2f pipes carries a micro-batch."""
    if workers % 2:
        return []
    return [f for f in _divisors(workers // 2, workers) if 2 * f <= micros and pinned.pairs in (None, f)]


def _chunks(name: str, pinned: Pins) -> tuple[int, ...]:
    allowed = FAMILIES[name].chunks
    options = (
        tuple(range(allowed, allowed + limits.FREE_CHUNKS)) if isinstance(allowed, int) else tuple(allowed)
    )
    if pinned.chunks is None:
        return options
    fits = pinned.chunks >= allowed if isinstance(allowed, int) else pinned.chunks in allowed
    return (pinned.chunks,) if fits else ()
