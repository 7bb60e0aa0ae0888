"""The factory of cut problems: keeps the orders, choices and tables over intervals that configurations share.

A data-parallel replica may sum its gradients in buckets (the family `overlap`). Where updates come when a bucket is
used, the best order depends on the cut, so that a configuration includes both: what is proved of the configuration
holds for them. The cut is the better of buckets of equal work and buckets of equal bytes. `k` and the order of the
sums are searched for the costs of that cut. Otherwise buckets are cut as the stages of any family are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.arrays import BoolArray, IntArray
from planner.cluster import Sum
from planner.configurations import Configuration, PlacementCosts, Update, part_sums
from planner.cost import GridChoice, Tables, layer_ns, update_pace
from planner.cuts import (
    COMPUTE,
    KINDS,
    CutProblem,
    CutRow,
    GridKey,
    LeastRecompute,
    Order,
    RecomputeMoments,
    RecomputeProblem,
    WorkMeter,
    column_sums,
    row_sums,
    with_units,
)
from planner.errors import BadInput
from planner.layout import Mesh
from planner.plan import StageTimes
from planner.profile import CostKey, Profile, launch_ns
from planner.proof import even, judge, near
from planner.schedule import Kind, Schedule, generate, overlapped, with_recompute
from planner.simulate import best_overlap

FAMILY = "overlap"


class OrderKey(NamedTuple):
    """Everything of a configuration that its order depends on."""

    family: str
    workers: int
    micros: int
    pairs: int
    chunks: int
    recompute: bool
    chosen: tuple[int, ...]
    mirrored: bool
    listed: str


Orders = dict[OrderKey, Order | None]
Rows = dict[tuple[Order, Update, int], list[CutRow]]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What holds of configurations however much memory devices have: learnt in one search, used in the next."""

    guesses: dict[Configuration, float] = field(default_factory=dict)
    totals: dict[tuple[str, Configuration, bool], float] = field(default_factory=dict)
    even_ns: dict[Configuration, int] = field(default_factory=dict)
    bare: dict[Configuration, tuple[float, int]] = field(default_factory=dict)  # see `pick.bare_ns`
    bounds: dict[Configuration, float] = field(default_factory=dict)  # of cuts in which all neighbours talk
    rows: Rows = field(default_factory=dict)  # of orders that several configurations have
    layouts: dict[tuple[CostKey, Mesh], list[GridChoice]] = field(default_factory=dict)  # looked for


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Makes cut problems for one cluster and one profile; an order of None cannot be had."""

    machines: PlacementCosts
    device: str  # that was profiled
    meter: WorkMeter
    orders: Orders = field(default_factory=dict)
    _choices: dict[OrderKey, RecomputeMoments] = field(default_factory=dict)
    _grids: dict[GridKey, IntArray] = field(default_factory=dict)

    def order(self, configuration: Configuration) -> Order | None:
        """Returns the order of a configuration.

        Returns: None where its family cannot be had at these numbers.
        """
        key = _order_key(configuration)
        if key not in self.orders:
            assert not configuration.listed, (
                "an order listed anew enters before its configuration is looked at"
            )
            schedule = _generate(configuration)
            if schedule is not None and configuration.mirrored:
                schedule = mirrored(schedule)
            again = configuration.recompute or configuration.sparing or configuration.chosen
            if schedule is not None and again:
                schedule = with_recompute(schedule, configuration.chosen or range(schedule.stages))
            self.orders[key] = None if schedule is None else Order(schedule)
            self.meter.compiled(0 if schedule is None else sum(map(len, schedule.orders)))
        return self.orders[key]

    def enter(self, configuration: Configuration, schedule: Schedule) -> None:
        """Enters an order that was listed anew.

        Args: `configuration` names the order in `listed`.
        """
        self.orders.setdefault(_order_key(configuration), Order(schedule))

    def of(
        self, configuration: Configuration, tables: Tables, order: Order, allowed: BoolArray
    ) -> CutProblem:
        """Returns the problem in which stages recompute as the order has it.

        Args: `allowed` tells of each of layers + 1 boundaries whether a cut may have it.
        """
        machine = self.machines.placement(configuration, self.device)
        fitted = self.machines.cluster.fitted
        place = np.array(order.schedule.place)
        stages = range(configuration.stages)
        kinds = [frozenset().union(*(machine.devices[w] for w in place[:, s])) for s in stages]
        slow = (max(machine.slowness[w] for w in place[:, s]) for s in stages)
        slowness = tuple(x * update_pace(tables, k) for x, k in zip(slow, kinds, strict=True))
        latency = np.maximum.reduce([machine.latency_ns[np.ix_(pipe, pipe)] for pipe in place])
        byte = np.maximum.reduce([machine.byte_ns[np.ix_(pipe, pipe)] for pipe in place])
        groups = tuple(tuple(sorted(set(place[:, s].tolist()))) for s in stages)
        sums = self.machines.worker_sums(configuration, groups)
        tie = self.machines.worker_sums(configuration, (tuple(range(configuration.workers)),), tied=True)[0]
        parts = tuple(part_sums(self.machines, configuration, groups, axes) for axes in tables.parted)
        prefix, launch = _prefixes(tables, slowness, kinds), [launch_ns(fitted, kind) for kind in COMPUTE]
        rows: tuple[Sum, ...] = ()
        if configuration.held:
            by_worker = row_sums(self.machines, configuration)
            rows = tuple(by_worker[group[0]] for group in groups)
            every = (*groups, tuple(range(configuration.workers)))
            *own, tie = column_sums(self.machines, configuration, every)
            sums, prefix = tuple(own), prefix.copy()
            launch = with_units(configuration, tables, rows, prefix, launch)
        return CutProblem(
            shape=configuration,
            tables=tables,
            order=order,
            mesh=machine,
            prefix_ns=prefix,
            launch_ns=np.array(launch, np.int64),
            update_ns=launch_ns(fitted, Kind.STEP),
            sums=sums,
            parts=parts,
            rows=rows,
            tie=tie,
            latency_ns=latency,
            byte_ns=byte,
            slowness=slowness,
            grids=self._grids,
            meter=self.meter,
            allowed=allowed,
        )

    def choosing(self, problem: CutProblem) -> RecomputeProblem:
        """Returns the problem that also chooses which stages recompute.

        Args: `problem` has an order where all stages do.
        """
        key = _order_key(problem.shape)
        moments = self._choices.setdefault(key, RecomputeMoments(problem.schedule))
        return RecomputeProblem.of(problem, moments)

    def sparing(self, problem: CutProblem, *, by_layer: bool) -> CutProblem | None:
        """Returns the problem in which a stage recomputes only where it must; None without an order for that.

        Args: `by_layer` tells whether a stage may recompute some of its layers.
        """
        plain = self.order(replace(problem.shape, sparing=False))
        if plain is None:
            return None
        row, prefix, launch = COMPUTE.index(Kind.R), problem.prefix_ns.copy(), problem.launch_ns.copy()
        least = LeastRecompute(
            sizes=problem,
            hosted=problem.hosted,
            available_bytes=problem.available_bytes,
            prefix_ns=prefix[row].copy(),
            launch_ns=int(launch[row]),
            plain=plain,
            by_layer=by_layer,
        )
        prefix[row], launch[row] = 0, 0
        return replace(problem, prefix_ns=prefix, launch_ns=launch, least=least)


def _prefixes(tables: Tables, slowness: Sequence[float], devices: Sequence[frozenset[str]]) -> IntArray:
    """Returns [kind, stage, layers + 1] sums of the times of layers; stages that are alike share them in memory."""
    kinds = list(dict.fromkeys(alike := list(zip(slowness, devices, strict=True))))
    out: IntArray = np.zeros((len(COMPUTE), len(kinds), tables.layers + 1), np.int64)
    for row, kind in enumerate(COMPUTE):
        for at, (factor, own) in enumerate(kinds):
            layers = layer_ns(tables, kind, own)
            if factor != 1.0 and not tables.types:
                layers = np.ceil(layers * factor).astype(np.int64)
            out[row, at, 1:] = layers.cumsum()
    shape = len(COMPUTE), len(alike), tables.layers + 1
    return np.broadcast_to(out, shape) if len(kinds) == 1 else out[:, [kinds.index(x) for x in alike]]


def _order_key(configuration: Configuration) -> OrderKey:
    return OrderKey(
        family=configuration.family,
        workers=configuration.workers,
        micros=configuration.micros,
        pairs=configuration.pairs,
        chunks=configuration.chunks,
        recompute=configuration.recompute or configuration.sparing,
        chosen=configuration.chosen,
        mirrored=configuration.mirrored,
        listed=configuration.listed,
    )


def mirrored(schedule: Schedule) -> Schedule:
    """Returns the schedule with the workers in the opposite order.

    Args: `schedule` is any schedule; its work stays the same.
    """
    last = schedule.workers - 1
    place = tuple(tuple(last - worker for worker in row) for row in schedule.place)
    return replace(schedule, place=place, orders=schedule.orders[::-1])


def _generate(shape: Configuration) -> Schedule | None:
    try:
        return generate(
            shape.family, workers=shape.workers, micros=shape.micros, pairs=shape.pairs, chunks=shape.chunks
        )
    except BadInput:
        return None


def arranged(problem: CutProblem, own: IntArray | None) -> CutProblem:
    """Returns the problem with its cut fixed, and the best order for that cut.

    Args: `own` is the user's cut, if there is one.
    """
    cuts = [own] if own is not None else [even(problem), near(problem, problem.tables.gradients[0])]
    ready = [_ordered(problem, cut) for cut in cuts]
    ns = [int(judge(each, cut[None, :])[0]) for each, cut in zip(ready, cuts, strict=True)]
    best = ns.index(min(ns))
    return replace(ready[best], fixed=cuts[best])


def _ordered(problem: CutProblem, cut: IntArray) -> CutProblem:
    shape = problem.shape
    whole = generate("1f1b", workers=shape.workers, micros=shape.micros)
    best = best_overlap(whole, _times(problem, cut), (), parts=shape.chunks, update=shape.update)
    problem.meter.compiled(2 * (shape.stages + 1) * problem.order.actions)
    cut_up = generate(FAMILY, workers=shape.workers, micros=shape.micros, chunks=shape.chunks)
    schedule = overlapped(cut_up, replace(best.overlap, parts=1))
    if shape.recompute:
        schedule = with_recompute(schedule, range(schedule.stages))
    return replace(problem, order=Order(schedule))


def _times(problem: CutProblem, cut: IntArray) -> list[StageTimes]:
    """Returns the durations of each stage; recomputing counts with the backward, as orders are searched without it."""
    table = problem.durations(cut).kinds[0]
    row = {kind: table[KINDS.index(kind)].tolist() for kind in KINDS}
    again = row[Kind.R] if problem.shape.recompute else [0] * problem.stages
    return [
        StageTimes(
            forward_ns=row[Kind.F][p],
            backward_ns=row[Kind.B][p] + again[p],
            input_grad_ns=row[Kind.I][p] + again[p],
            weight_grad_ns=row[Kind.W][p],
            sync_ns=row[Kind.SYNC][p],
            step_ns=row[Kind.STEP][p],
        )
        for p in range(problem.stages)
    ]


def pinned_cut(profile: Profile, stages: tuple[tuple[str, ...], ...]) -> IntArray:
    """Returns the cut that has these stages.

    Args: `stages` are the names of the layers of each stage.
    Raises: BadInput where the stages leave the order of the model.
    """
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
