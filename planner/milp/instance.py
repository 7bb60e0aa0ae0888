"""From a shape to the problem that its cut poses, and what no order of its actions could beat.

Other questions about the same costs: other machines, other memory, other pins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.arrays import NS_PER_S, BoolArray, IntArray
from planner.cluster import Cluster, Corrections, Group, Sum
from planner.cost import GridChoice, Prices, Tables, price, sharded
from planner.errors import BadInput
from planner.milp.configurations.configurations import Configuration
from planner.milp.configurations.placement import Placement, PlacementCosts, mesh
from planner.milp.configurations.spatial_choices import asked, choice_of, choices, needs_space, none_of
from planner.milp.cut.frozen_order import Order, WorkMeter
from planner.milp.cut.gradient_parts import FAMILY, arranged
from planner.milp.cut.problem import CutProblem
from planner.milp.cut.recompute_choice import RecomputeMoments, RecomputeProblem
from planner.milp.cut.recompute_least import PARTED, alone
from planner.milp.cut.stage_costs import COMPUTE
from planner.milp.pins import Pins
from planner.milp.proof.feasible import windows
from planner.profile import CostKey, Profile, corrected, launch_ns
from planner.schedule import FAMILIES, Kind, Schedule, generate, with_recompute

_ANYWHERE = 24  # layers up to which every boundary is looked at, whether stages talk across it or not


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The question that is asked, with what is worked out once for all shapes."""

    profile: Profile
    cluster: Cluster
    batch: int
    precision: str
    execution: str
    pins: Pins
    meter: WorkMeter = field(default_factory=WorkMeter)
    _tables: dict[tuple[object, ...], Tables] = field(default_factory=dict)
    _groups: dict[tuple[object, ...], Group] = field(default_factory=dict)
    _orders: dict[tuple[object, ...], Order | None] = field(default_factory=dict)
    _choices: dict[tuple[object, ...], RecomputeMoments] = field(default_factory=dict)
    _meshes: dict[tuple[object, ...], Placement] = field(default_factory=dict)
    _sums: dict[tuple[object, ...], tuple[Sum, ...]] = field(default_factory=dict)
    _grids: dict[tuple[object, ...], IntArray] = field(default_factory=dict)

    @cached_property
    def machines(self) -> PlacementCosts:
        return PlacementCosts(self.cluster)

    @property
    def layers(self) -> int:
        return len(self.profile.graph.layers)

    @cached_property
    def costs(self) -> Profile:
        return corrected(self.profile, self.cluster.fitted)

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.profile.graph)

    def tables(self, shape: Configuration) -> Tables:
        if not shape.grid:
            return self.whole(shape.micro)
        where = (shape.grid, shape.devices, bool(shape.then) or shape.shared)
        if where not in self._groups:
            self._groups[where] = self.machines.spatial_group(shape)
        group, overlap = self._groups[where], not FAMILIES[shape.family].splits
        choice = choice_of(shape)
        key = (shape.micro, choice, group, overlap)
        if key not in self._tables:
            setting, found = self._setting(shape.micro), self.prices(choice)
            self._tables[key] = sharded(self.costs, setting, choice, found, group, overlap=overlap)
        return self._tables[key]

    def whole(self, micro: int) -> Tables:
        """Of whole samples."""
        if (micro,) not in self._tables:
            self._tables[micro,] = price(self.costs, self._setting(micro))
        return self._tables[micro,]

    def _setting(self, micro: int) -> CostKey:
        return CostKey("", micro, (), self.precision, self.execution)

    def splits(self, micro: int) -> tuple[GridChoice, ...]:
        """How samples may be cut in space, whole ones first; as far as the pins allow."""
        plain = self.pins.spatial in (None, 1) and not needs_space(self.pins)
        return (*((GridChoice(),) if plain else ()), *self._cut.get(micro, ()))

    @cached_property
    def _cut(self) -> Mapping[int, tuple[GridChoice, ...]]:
        """By micro-batch, of which some may have a split that others have not; BadInput where none has what is fixed."""
        pinned = self.pins
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
        """Micro-batches that every layer was profiled at."""
        found = []
        for key in self.profile.settings:
            same = (key.precision, key.execution, key.split) == (self.precision, self.execution, ())
            if same and not any(f._replace(signature="") == key for f in self.profile.failures):
                found.append(key.micro)
        graph = self.profile.graph
        return found if graph.symbolic_batch else [m for m in found if m == graph.captured_micro]

    def order(self, shape: Configuration) -> Order | None:
        """The order of a shape; None where its family cannot be had at these numbers."""
        key = _order_key(shape)
        if key not in self._orders:
            assert not shape.listed, "an order listed anew enters before its shape is looked at"
            found = _generate(shape)
            if found is not None and shape.mirrored:
                found = mirrored(found)
            if found is not None and (shape.recompute or shape.sparing or shape.chosen):
                found = with_recompute(found, shape.chosen or range(found.stages))
            self._orders[key] = None if found is None else Order(found)
            self.meter.compiled(0 if found is None else sum(map(len, found.orders)))
        return self._orders[key]

    def enter(self, shape: Configuration, schedule: Schedule) -> None:
        """An order listed anew, under the name that its shape has for it."""
        self._orders.setdefault(_order_key(shape), Order(schedule))

    def problem(self, shape: Configuration) -> CutProblem | None:
        order = self.order(shape)
        allowed = self._allowed(shape)
        if order is None or order.schedule.stages >= np.count_nonzero(allowed):
            return None
        where = (shape.data, shape.workers, shape.axes, shape.grid)
        if where not in self._meshes:
            self._meshes[where] = mesh(self.machines, shape, self.profile.device)
        machine = self._meshes[where]

        def priced(groups: tuple[tuple[int, ...], ...]) -> tuple[Sum, ...]:
            key = (*where, groups)
            if key not in self._sums:
                slots = [[row[w] for row in machine.grid for w in group] for group in groups]
                self._sums[key] = tuple(self.machines.sums(slots))
            return self._sums[key]

        problem = _problem(
            shape, self.tables(shape), order, machine, priced, self._grids, self.meter, allowed
        )
        problem = _launched(problem, self.cluster.fitted)
        if shape.sparing and not alone(shape):
            return RecomputeProblem.of(
                problem, self._choices.setdefault(_order_key(shape), RecomputeMoments(order.schedule))
            )
        if shape.sparing:
            plain = self.order(replace(shape, sparing=False))
            by_layer = self.parts_recompute and not shape.grid
            return None if plain is None else problem.spared(plain, by_layer=by_layer)
        return arranged(problem, self._own_cut) if self.at_use(shape) else problem

    def at_use(self, shape: Configuration) -> bool:
        """Whether updates come when parts are used, so that the order depends on what they take. Nothing may have to
        see every gradient before the first update; see `runtime.at_use`."""
        counted = self.profile.graph.loss_kind == "sum_count"
        late = shape.family == FAMILY and shape.update == "rolling"
        return late and shape.pipes == 1 and not (shape.shard or counted or self.precision == "fp16")

    @cached_property
    def boundaries(self) -> BoolArray:
        """Where a model may be cut: in larger models only where a layer hangs on the one before it, so that every
        stage feeds the next."""
        direct = self.whole(self.micros()[0]).direct
        every: BoolArray = np.ones(self.layers + 1, np.bool_)
        return every if self.layers <= _ANYWHERE or self.pins.stages is not None else direct

    def _allowed(self, shape: Configuration) -> BoolArray:
        """Where samples are shared in the last stage, that stage has all of the layers on shares."""
        if not shape.shared:
            return self.boundaries
        found = self.boundaries.copy()
        found[shape.whole_from + 1 : -1] = False
        return found

    @property
    def parts_recompute(self) -> bool:
        """Whether stages may recompute some of their layers, where samples are whole."""
        return self.execution == "eager" and self.layers <= PARTED

    @cached_property
    def chained(self) -> bool:
        return bool(self.whole(self.micros()[0]).direct[self.boundaries].all())

    def cluster_link_ns(self, size: int) -> float:
        """One message over the longest distance."""
        links = self.cluster.links
        wire = links.cluster or links.rack or links.node
        return 0.0 if wire is None else (wire.latency_s + size / wire.bandwidth_bytes_per_s) * NS_PER_S

    def typical_sum(self, shape: Configuration) -> Sum:
        key = (shape.data, shape.workers, shape.axes, shape.grid, "typical")
        if key not in self._sums:
            self._sums[key] = (self.machines.typical_sum(shape),)
        return self._sums[key][0]

    def column_sums(self, shape: Configuration) -> tuple[Sum, ...]:
        """Over the replicas of each worker."""
        key = (shape.data, shape.workers, shape.axes, shape.grid, "columns")
        if key not in self._sums:
            grid = self.machines.grid(shape)
            self._sums[key] = tuple(
                self.machines.sums([[row[w] for row in grid] for w in range(shape.workers)])
            )
        return self._sums[key]

    def windows(self, problem: CutProblem) -> tuple[IntArray, IntArray] | None:
        """Of every boundary; the user's own cut where one is pinned, None where it has other stages."""
        if self.pins.stages is None:
            return windows(problem) if problem.fixed is None else (problem.fixed, problem.fixed.copy())
        own = self._own_cut
        fits = own is not None and len(own) == problem.stages + 1
        return (problem.pointed(own, 0), problem.pointed(own.copy(), 1)) if own is not None and fits else None

    @cached_property
    def _own_cut(self) -> IntArray | None:
        """Of the user."""
        return None if self.pins.stages is None else pinned_cut(self.profile, self.pins.stages)


def _problem(
    shape: Configuration,
    tables: Tables,
    order: Order,
    machine: Placement,
    sums: Callable[[tuple[tuple[int, ...], ...]], tuple[Sum, ...]],
    grids: dict[tuple[object, ...], IntArray],
    meter: WorkMeter,
    allowed: BoolArray,
) -> CutProblem:
    """`sums` prices the all-reduces over the replicas of groups of workers."""
    place = np.array(order.schedule.place)
    slowness = tuple(max(machine.slowness[w] for w in place[:, s]) for s in range(shape.stages))
    latency = np.maximum.reduce([machine.latency_ns[np.ix_(pipe, pipe)] for pipe in place])
    byte = np.maximum.reduce([machine.byte_ns[np.ix_(pipe, pipe)] for pipe in place])
    groups = tuple(tuple(sorted(set(place[:, s].tolist()))) for s in range(shape.stages))
    return CutProblem(
        shape=shape,
        tables=tables,
        order=order,
        mesh=machine,
        prefix_ns=_prefixes(tables, slowness),
        launch_ns=np.zeros(len(COMPUTE), np.int64),
        update_ns=0,
        sums=sums(groups),
        tie=sums((tuple(range(shape.workers)),))[0],
        latency_ns=latency,
        byte_ns=byte,
        slowness=slowness,
        grids=grids,
        meter=meter,
        allowed=allowed,
    )


def _launched(problem: CutProblem, fitted: Corrections | None) -> CutProblem:
    return replace(
        problem,
        launch_ns=np.array([launch_ns(fitted, kind) for kind in COMPUTE], np.int64),
        update_ns=launch_ns(fitted, Kind.STEP),
    )


def _prefixes(tables: Tables, slowness: Sequence[float]) -> IntArray:
    out: IntArray = np.zeros((len(COMPUTE), len(slowness), tables.layers + 1), np.int64)
    for row, kind in enumerate(COMPUTE):
        layers = np.diff(tables.time_ns[kind])
        for stage, factor in enumerate(slowness):
            own = layers if factor == 1.0 else np.ceil(layers * factor).astype(np.int64)
            out[row, stage, 1:] = own.cumsum()
    return out


def _order_key(shape: Configuration) -> tuple[object, ...]:
    numbers = (shape.workers, shape.micros, shape.pairs, shape.chunks)
    again = shape.recompute or shape.sparing
    return (shape.family, *numbers, again, shape.chosen, shape.mirrored, shape.listed)


def mirrored(schedule: Schedule) -> Schedule:
    """The same work with the workers in the opposite order."""
    last = schedule.workers - 1
    place = tuple(tuple(last - worker for worker in row) for row in schedule.place)
    return replace(schedule, place=place, orders=schedule.orders[::-1])


def _generate(shape: Configuration) -> Schedule | None:
    try:
        return generate(
            shape.family,
            workers=shape.workers,
            micros=shape.micros,
            pairs=shape.pairs,
            chunks=shape.chunks,
        )
    except BadInput:
        return None


def pinned_cut(
    profile: Profile, stages: tuple[tuple[str, ...], ...]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    names = [name for stage in stages for name in stage]
    right = [layer.name for layer in profile.graph.layers]
    if names != right or not all(stages):
        wrong = next((a for a, b in zip(names, right, strict=False) if a != b), "the last layers")
        raise BadInput(
            f"stages leave the order of the model at '{wrong}'",
            where="fix",
            allowed="every layer once, in the model's order, no stage empty",
        )
    return np.cumsum([0, *map(len, stages)])


def short_bytes(instance: Instance, shape: Configuration) -> int:
    """By how much the state of the model, spread evenly, exceeds the largest device: no cut can do with less."""
    tables, share = instance.whole(shape.micro), shape.holders if shape.shard else 1
    state = tables.elements[0, -1] * tables.state_bytes_per_element / share
    whole = float(tables.parameters[0, -1] + tables.gradients[0, -1] + state)
    most = max(group.limit_bytes for group in instance.cluster.nodes)
    return max(0, int(shape.pipes * whole / shape.workers) - most)


def changed(instance: Instance, *, cluster: Cluster | None = None, pins: Pins | None = None) -> Instance:
    """Another question about the same costs: what was worked out for layers and orders is kept."""
    return Instance(
        profile=instance.profile,
        cluster=cluster or instance.cluster,
        batch=instance.batch,
        precision=instance.precision,
        execution=instance.execution,
        pins=pins or instance.pins,
        _tables=instance._tables,
        _orders=instance._orders,
    )
