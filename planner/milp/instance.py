"""One planning instance: profile, cluster, batch and pins, with the tables that configurations share.

Start with `Instance.problem`, which turns a configuration into the problem of where to cut the layers. `changed` gives
an instance about the same costs: other machines, other memory, other pins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple, get_args

import numpy as np

from planner import limits
from planner.arrays import NS_PER_S, BoolArray, IntArray
from planner.cluster import Cluster, Group
from planner.configurations import (
    Configuration,
    Held,
    Pins,
    PlacementCosts,
    asked,
    can_share,
    choice_of,
    choices,
    group_on,
    groups_with_cut,
    may_be_whole,
    needs_space,
    none_of,
)
from planner.cost import GridChoice, Prices, Tables, price, shared_tables
from planner.cuts import CutProblem, WorkMeter, alone
from planner.errors import BadInput, Violation
from planner.group import MeshOnCluster
from planner.milp.problems import FAMILY, Kept, Orders, Problems, arranged, pinned_cut
from planner.model import own_states, refusals
from planner.profile import CostKey, Profile, corrected
from planner.proof import windows
from planner.schedule import FAMILIES

WHOLE = GridChoice()
_MEMORY = {"nodes": {"__all__": {"memory_bytes", "margin_bytes"}}}


class TablesKey(NamedTuple):
    """Everything that the tables of layers depend on, besides the profile; whole samples have no group."""

    micro: int
    choice: GridChoice = WHOLE
    group: Group | MeshOnCluster | None = None
    overlap: bool = False


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One planning instance: profile, cluster, batch and pins, with the tables that configurations share."""

    profile: Profile
    cluster: Cluster
    batch: int
    precision: str
    execution: str
    pins: Pins
    meter: WorkMeter = field(default_factory=WorkMeter)
    _tables: dict[TablesKey, Tables] = field(default_factory=dict)
    _known: dict[Configuration, Tables] = field(default_factory=dict)
    _orders: Orders = field(default_factory=dict)
    _kept: dict[object, Kept] = field(default_factory=dict)

    @cached_property
    def kept(self) -> Kept:
        """Returns what is kept between instances whose devices differ in memory alone."""
        cluster = self.cluster.model_dump_json(exclude=_MEMORY)
        return self._kept.setdefault((cluster, self.pins.stages), Kept())

    @cached_property
    def problems(self) -> Problems:
        """Returns the factory of this instance's cut problems."""
        return Problems(
            machines=self.machines, device=self.profile.device, meter=self.meter, orders=self._orders
        )

    @cached_property
    def machines(self) -> PlacementCosts:
        return PlacementCosts(self.cluster, self.pins.sums)

    def permits(self, shape: Configuration) -> bool:
        """Returns whether the model can be trained under a configuration; see `planner.model.refusals`."""
        degrees = shape.data, shape.spatial, shape.pipes, shape.stages, shape.shard or bool(shape.held)
        return self._permitted(*degrees) and self.machines.sums_so(shape.holders)

    @cached_property
    def _permitted(self) -> Callable[..., bool]:
        return cache(lambda *degrees: next(self.refusals(*degrees), None) is None)

    def refusals(self, data: int, spatial: int, pipes: int, stages: int, shard: bool) -> Iterator[Violation]:
        """Yields why the model cannot be trained so; arguments are those of `planner.model.refusals`."""
        return refusals(
            self.profile.graph,
            data=data,
            spatial=spatial,
            pipes=pipes,
            compiled=self.execution == "compiled",
            stages=stages,
            shard=shard,
            joint=self.joint,
        )

    @property
    def joint(self) -> str:
        """Returns the name of an optimizer that looks at all parameters together; "" for any other."""
        return self.profile.optimizer.name if self.profile.optimizer.joint else ""

    def by_element(self, shape: Configuration) -> tuple[Configuration, ...]:
        """Returns the variants of a configuration whose replicas share gradients or parameters, where the pins leave that.

        All replicas share, or those in one node; where there are few, any number that divides them.
        """
        pins, data = self.pins, shape.data
        free = pins.shard is None and pins.held is None and not self.joint
        plain = not (shape.held or shape.shard or shape.listed)
        known = self.profile.by_element and self.execution == "eager"
        if not (free and plain and known and can_share(data, 1 if shape.mesh else shape.spatial, data)):
            return ()
        near, few = self.cluster.nodes[0].devices_per_node // shape.workers, data <= limits.FEW_REPLICAS
        every = [k for k in range(2, data + 1) if data % k == 0 and (few or k in (near, data))]
        what = get_args(Held)[1:2] if own_states(self.profile.graph) else get_args(Held)[1:]
        return tuple(replace(shape, held=held, ranks=k) for held in what for k in every)

    def may_share(self, shape: Configuration) -> bool:
        """Returns whether the configuration has a variant with a sharded optimizer that waits with it."""
        free = self.pins.shard is not False and not self.joint
        return free and not shape.shard and not shape.held and shape.holders > 1

    @property
    def layers(self) -> int:
        return len(self.profile.graph.layers)

    @cached_property
    def costs(self) -> Profile:
        return corrected(self.profile, self.cluster.fitted)

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.profile.graph)

    def tables(self, configuration: Configuration) -> Tables:
        """Returns what all layers cost one rank of this configuration, for one micro-batch."""
        if configuration.spatial == 1:
            return self.whole(configuration.micro)
        if configuration not in self._known:  # else most of a search would go into this key
            setting, choice = self._setting(configuration.micro), choice_of(configuration)
            apart = not (choice.mesh or FAMILIES[configuration.family].splits)
            where = group_on(self.machines, configuration), apart
            key = TablesKey(setting.micro, choice, *where)
            if key not in self._tables:
                found = shared_tables(self.costs, setting, choice, self.prices, *where)
                self._tables[key] = replace(found, averaged=self.pins.ema)
            self._known[configuration] = self._tables[key]
        return self._known[configuration]

    def whole(self, micro: int) -> Tables:
        """Returns what layers cost on whole samples, in micro-batches of `micro` samples."""
        key = TablesKey(micro=micro)
        if key not in self._tables:
            found = price(self.costs, self._setting(micro))
            self._tables[key] = replace(found, averaged=self.pins.ema)
        return self._tables[key]

    def _setting(self, micro: int) -> CostKey:
        return CostKey("", micro, (), self.precision, self.execution)

    def splits(self, micro: int) -> tuple[GridChoice, ...]:
        """Returns the ways to cut samples in space that the pins allow, whole samples first.

        Args: `micro` is the samples of a micro-batch.
        """
        return (*((WHOLE,) if may_be_whole(self.pins) else ()), *self._cut.get(micro, ()))

    @cached_property
    def _cut(self) -> Mapping[int, tuple[GridChoice, ...]]:
        """Returns the ways to cut samples, or tensors, for each micro-batch; some may have a way that others have not.

        Raises: BadInput where no micro-batch has what is fixed.
        """
        pinned = self.pins
        if pinned.cut is not None:
            facts = self.profile, self._setting(self.batch), self.micros(), pinned, self.cluster
            return groups_with_cut(*facts, self.kept.layouts)
        if self.execution != "eager" or pinned.spatial == 1:
            if self.execution != "eager" and needs_space(pinned):
                raise BadInput("a gather and regrid need execution: eager", where="fix", allowed="neither")
            return {}
        turns = (pinned.regrid or "").split(",")
        named = {pinned.gather or "", *(turn.rpartition(":")[0] for turn in turns)}
        every = {
            micro: choices(self.profile, self._setting(micro), self.prices, named) for micro in self.micros()
        }
        found = {micro: asked(given, self.prices, pinned) for micro, given in every.items()}
        wanted = [micro for micro in found if pinned.micro in (None, micro)]
        if wanted and not any(found[micro] for micro in wanted):
            none_of(every[wanted[0]], self.prices, pinned)
        return found

    def micros(self) -> list[int]:
        """Returns the micro-batches that every layer was profiled at."""
        found = []
        for key in self.profile.settings:
            same = (key.precision, key.execution, key.split) == (self.precision, self.execution, ())
            if same and not any(f._replace(signature="") == key for f in self.profile.failures):
                found.append(key.micro)
        return [micro for micro in found if self.profile.graph.serves(micro)]

    def problem(self, configuration: Configuration) -> CutProblem | None:
        """Returns the cut problem of a configuration; None where its order, or so many stages, cannot be had."""
        order = self.problems.order(configuration)
        allowed = self._allowed(configuration)
        if order is None or order.schedule.stages >= np.count_nonzero(allowed):
            return None
        problem = self.problems.of(configuration, self.tables(configuration), order, allowed)
        if configuration.sparing and not alone(configuration):
            return self.problems.choosing(problem)
        if configuration.sparing:
            by_layer = self.parts_recompute and configuration.spatial == 1
            return self.problems.sparing(problem, by_layer=by_layer)
        return arranged(problem, self._own_cut) if self.at_use(configuration) else problem

    def at_use(self, shape: Configuration) -> bool:
        """Tells whether updates come when gradient buckets are used, so that the order depends on what they take.

        Returns: False where something may have to see every gradient before the first update; see `runtime.update.check`.
        """
        counted = self.profile.graph.loss_kind == "sum_count"
        late = shape.family == FAMILY and shape.update == "rolling"
        return late and shape.pipes == 1 and not (shape.updaters > 1 or counted or self.precision == "fp16")

    def _allowed(self, shape: Configuration) -> BoolArray:
        """Returns the boundaries of a configuration, [layers + 1].

        Where the last stage shares samples, it has all of the layers on shares.
        """
        found: BoolArray = np.ones(self.layers + 1, np.bool_)
        if shape.shared:
            found[shape.whole_from + 1 : -1] = False
        return found

    @property
    def parts_recompute(self) -> bool:
        """Returns whether stages may recompute some of their layers, where samples are whole."""
        return self.execution == "eager" and self.layers <= limits.PARTED_LAYERS

    def cluster_link_ns(self, size: int) -> float:
        """Returns the time of a message over the longest distance."""
        wire = self.cluster.links.longest
        return 0.0 if wire is None else (wire.latency_s + size / wire.bandwidth_bytes_per_s) * NS_PER_S

    def windows(self, problem: CutProblem) -> tuple[IntArray, IntArray] | None:
        """Returns the least and the largest value of every boundary.

        Returns: the user's own cut where one is pinned, None where that has another number of stages.
        """
        if self.pins.stages is None:
            return windows(problem) if problem.fixed is None else (problem.fixed, problem.fixed.copy())
        own = self._own_cut
        fits = own is not None and len(own) == problem.stages + 1
        return (problem.pointed(own, 0), problem.pointed(own.copy(), 1)) if own is not None and fits else None

    @cached_property
    def _own_cut(self) -> IntArray | None:
        """Returns the cut of the user, if there is one."""
        return None if self.pins.stages is None else pinned_cut(self.profile, self.pins.stages)


def changed(
    instance: Instance,
    *,
    cluster: Cluster | None = None,
    pins: Pins | None = None,
    profile: Profile | None = None,
) -> Instance:
    """Returns another instance about the same costs, which keeps the orders, and the tables unless `profile` changes.

    Args: what is None stays as it is.
    """
    return Instance(
        profile=profile or instance.profile,
        cluster=cluster or instance.cluster,
        batch=instance.batch,
        precision=instance.precision,
        execution=instance.execution,
        pins=pins or instance.pins,
        _tables=instance._tables if profile is None else {},
        _orders=instance._orders,
        _kept=instance._kept if profile is None else {},
    )
