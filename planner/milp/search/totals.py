"""Bounds configurations from totals alone, whatever their cut and order: thousands of configurations a second.

With N micro-batches on D workers and P pipes, and all bounds of means that the worst worker is not below:

    load     every worker computes, and updates what it holds
    layer    the pipe with the most micro-batches takes them all through the stage of one layer, after what the layers
             before it must do first and, where backward passes are whole, before what they must do last; or after a
             forward pass through all layers and a backward one to there, with nothing but backward passes left
    chain    a micro-batch goes through every layer and back
    hops     messages between stages take the shortest link and the least that a layer hands on. A stage waits for as
             many as lie before it, save where a pipe turns on its worker; no more than P workers have their first
             stage at the same place
    heads    one stage a worker: `T >= p hop + head_p + N t_p`, where the head is what the stages before p must do first
             (and, with whole backward passes, last). With every head at least `a` times the work before it,
             `T >= (N total + hop * sum of p r^(D-1-p)) / (sum of r^p)` with `r = 1 - a / N`
    sums     no gradient sum starts before a micro-batch is through all layers and has come back into the last one, and
             those of a worker queue up; sums of buckets take no less than the sum of the whole
    queue    of the k stages of a worker, in the order of their sums: the first i are computed before the i-th sum
             starts, so that for any shares `u` of 1 among them, T takes of a layer in the i-th at least
             `(u_i + .. + u_k) n t + (u_1 + .. + u_i) sum`, n micro-batches a pipe, and the least over i bounds it

Where some stage does not talk with the one before it, micro-batches may pass by: what comes before a layer and after it
is then the longest way through the layers themselves, messages and heads count nothing. `Passed` has those ways. The two
stages beside a silent boundary hold few layers (`Talk.beside`): with one stage a worker, others compute the rest. Both
kinds of cuts are bounded apart, and the less of the two holds for all.

Under a rolling update a worker computes for the next step while others end this one, so others' first and last work
does not delay it. Heads count only with whole backward passes: the cycle through the first stage carries them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

import numpy as np

from planner.arrays import FloatArray, IntArray
from planner.cluster import Sum
from planner.configurations import Configuration
from planner.cost import Tables
from planner.cuts import LayerWork, Passed, UnitFloors, layer_work, own_bytes, shared_by, updated_alone
from planner.milp.instance import Instance
from planner.schedule import FAMILIES

Bound = Literal["computed", "free", "summed"]


@dataclass(frozen=True, eq=False)
class TotalsBound:
    """Lower bounds of the configurations of one planning instance, with what they share worked out once."""

    instance: Instance
    _works: dict[tuple[object, ...], LayerWork] = field(default_factory=dict)
    _work_of: dict[Configuration, LayerWork] = field(default_factory=dict)
    _layers: dict[tuple[object, ...], float] = field(default_factory=dict)
    _hops: dict[object, float] = field(default_factory=dict)
    _bytes: dict[tuple[object, bool], IntArray] = field(default_factory=dict)
    _passed: dict[int, Passed] = field(default_factory=dict)

    def work(self, shape: Configuration) -> LayerWork:
        if shape not in self._work_of:
            tables, family = self.instance.tables(shape), FAMILIES[shape.family]
            splits, mixes, slow = family.splits, family.mixes or bool(shape.listed), self._slow(shape)
            key = (tables.key, splits, mixes, shape.recompute, shared_by(shape), slow)
            if key not in self._works:
                more = self.units.exposed(shape, tables)
                self._works[key] = layer_work(tables, splits, mixes, shape.recompute, more, slow)
            self._work_of[shape] = self._works[key]
        return self._work_of[shape]

    def _slow(self, shape: Configuration) -> float:
        if len(self._paces) == 1:
            return min(self._paces)  # no need to know where the workers are
        return min(self.instance.machines.placement(shape, self.instance.profile.device).slowness)

    @cached_property
    def _paces(self) -> frozenset[float]:
        return self.instance.machines.paces(self.instance.profile.device)

    @cached_property
    def units(self) -> UnitFloors:
        """Returns what gathers and sums of units take at least."""
        return UnitFloors(self.instance.machines, self.instance.profile.device)

    def passed(self, shape: Configuration) -> Passed:
        """Returns the work of layers in cuts where some neighbours do not talk."""
        work = self.work(shape)
        if id(work) not in self._passed:
            self._passed[id(work)] = Passed(work, self.instance.tables(shape).edges)
        return self._passed[id(work)]

    def _talking(self, shape: Configuration) -> tuple[bool, ...]:
        """Returns which kinds of cuts a configuration has: those in which all neighbours talk, and others."""
        always = shape.workers == 1 or self.instance.tables(shape).talk.always(shape.stages)
        return (True,) if always else (True, False)

    def _longest(self, shape: Configuration, fullest: int, talking: bool) -> float:
        """Returns the longest layer with its micro-batches and what must come before and after it."""
        work, apart = self.work(shape), shape.update == "barrier"
        where = apart and talking and (shape.workers, shape.chunks)
        key = id(work), shape.family, shape.listed, fullest, where, talking  # works are kept
        if key not in self._layers:
            around: IntArray | FloatArray = np.zeros(1)
            if apart and talking:
                before = self._hops_before(shape) * self._hop_ns(shape) * (1 if work.splits else 2)
                around = work.around + before
            elif apart:
                around = self.passed(shape).around
            self._layers[key] = float((around + fullest * work.total).max())
        return self._layers[key]

    def _hop_ns(self, shape: Configuration) -> float:
        """Returns what a message between stages takes at least."""
        if shape.workers == 1:
            return 0.0
        if (key := (tables := self.instance.tables(shape)).key) not in self._hops:
            self._hops[key] = self.instance.machines.least_hop_ns(tables.talk.least)
        return self._hops[key]

    def _hops_before(self, shape: Configuration) -> IntArray:
        """Returns the messages before each layer's stage at least: no stage after it is empty."""
        left = np.arange(-self.instance.layers, 0)
        return _hops_to(shape, np.maximum(left + shape.stages, 0))

    def _lead_ns(self, shape: Configuration) -> float:
        """Returns the time of messages before a worker's first stage, on average."""
        return self._hop_ns(shape) * _mean_place(shape.workers, shape.pipes)

    def load_ns(self, shape: Configuration) -> float:
        """Returns the nanoseconds that a worker computes, on average, with what it waits for units behind nothing."""
        begun = self.units.begun_ns(shape, self.instance.tables(shape))
        return self.work(shape).all_ns * shape.micros / shape.workers + begun

    def step_ns(self, shape: Configuration) -> float:
        """Returns the nanoseconds that updates take on a worker, on average."""
        tables = self.instance.tables(shape)
        rate = tables.step_ns_per_element * self._slow(shape) / shape.updaters
        each = float(tables.elements[0, -1]) * rate
        if shape.held == "gradients":  # what is updated is gathered, at half of a sum
            each += 0.5 * float(_least(self.units.rows(shape), tables.gradients[0, -1:])[0])
        return each * shape.pipes / shape.workers

    def computed_ns(self, shape: Configuration) -> float:
        """Returns the bound of load, layer, chain, hops and heads, as if gradient sums and updates took nothing.

        It holds for all variants whose replicas share something: they only add to what is computed.
        """
        return self._over("computed", shape, None)

    def free_ns(self, shape: Configuration, *, talking: bool | None = None) -> float:
        """Returns the bound of load, layer, chain, hops and heads, in nanoseconds.

        Args: `talking` asks for the cuts in which all neighbours talk, or for the others; None for both.
        """
        return self._over("free", shape, talking)

    def _over(self, what: Bound, shape: Configuration, talking: bool | None) -> float:
        kinds = self._talking(shape) if talking is None else (talking,)
        return min(self._known(what, shape, each) for each in kinds)

    def _known(self, what: Bound, shape: Configuration, talking: bool) -> float:
        """Returns a bound of one kind of cuts, worked out once."""
        key, known = (what, shape, talking), self.instance.kept.totals
        if key not in known:
            find = {"computed": self._computed, "free": self._freely, "summed": self._summed}[what]
            known[key] = find(shape, talking)
        return known[key]

    def _freely(self, shape: Configuration, talking: bool) -> float:
        lead = self._lead_ns(shape) if shape.update == "barrier" and talking else 0.0
        return max(self._known("computed", shape, talking), self.load_ns(shape) + self.step_ns(shape) + lead)

    def _computed(self, shape: Configuration, talking: bool) -> float:
        work, barrier = self.work(shape), shape.update == "barrier"
        tables, fullest = self.instance.tables(shape), -(-shape.micros // shape.pipes)
        least = max(load := self.load_ns(shape), self._longest(shape, fullest, talking))
        if not talking:
            if shape.pipes == shape.chunks == 1 and shape.workers > 2:
                alone = work.all_ns - self.passed(shape).beside(tables, shape.stages)
                least = max(least, alone * shape.micros / (shape.workers - 2))
            return max(least, float(self.passed(shape).chain)) if barrier else least
        hop, ways = (self._hop_ns(shape), 1 if work.splits else 2) if barrier else (0.0, 0)
        least = max(least, float(work.chain) + 2 * hop * _hops(shape))
        if barrier:
            least = max(least, load + ways * self._lead_ns(shape))
        if shape.pipes == shape.chunks == 1 and (barrier or not work.splits) and work.part > 1e-6:
            least = max(least, _heads(shape, work, ways * hop))
        return least

    def summed_ns(self, shape: Configuration, *, talking: bool | None = None) -> float:
        """Returns the bound of everything, gradient sums included, in nanoseconds.

        Args: `talking` as in `free_ns`.
        """
        return self._over("summed", shape, talking)

    def _summed(self, shape: Configuration, talking: bool) -> float:
        least = self._known("free", shape, talking)
        sums, even = self.sums(shape) if shape.holders > 1 else (), self._even(shape)
        if not sums or (shape.pipes > 1 and not even):
            return least
        tables, work, workers = self.instance.tables(shape), self.work(shape), shape.workers
        once = 0 if even else _shared_bytes(tables)
        queue = shape.pipes * float(_least(sums, tables.summed[0, -1:] - once)[0]) / workers
        step = self.step_ns(shape) + (0.5 * queue if shape.shard else 0.0)
        if shape.update == "rolling":
            return max(least, queue)
        if not talking:
            return max(least, queue + step)
        forward = float(work.forward.sum()) + self._hop_ns(shape) * _hops(shape)
        least = max(least, forward + float(work.back[-1]) + queue + step)
        if shape.pipes == shape.chunks == 1:
            least = max(least, forward + float(work.last.sum()) * shape.micros / workers + queue + step)
        least = max(least, self._lead_ns(shape) + self._queued_ns(shape, sums, even) + step)
        return max(least, self._layer_ns(shape, sums)) if even else least

    def sums(self, shape: Configuration) -> tuple[Sum, ...]:
        """Returns the different sums of gradients at the end of a step over the replicas of a worker."""
        if shape.held:
            return self.units.columns(shape)
        return tuple(dict.fromkeys(self.instance.machines.column_sums(shape)))

    def _queued_ns(self, shape: Configuration, sums: tuple[Sum, ...], even: bool) -> float:
        """Returns compute and gradient sums of a worker on average, as far as sums must follow compute."""
        tables, work = self.instance.tables(shape), self.work(shape)
        size = self._own(tables, even)
        after = size * (float(_least(sums, size.sum(keepdims=True))[0] - 1) / max(1, int(size.sum())))
        each, count = (shape.micros // shape.pipes) * work.total, shape.pipes * shape.chunks
        done, left = _shares(count, float(each.sum()), float(after.sum()))
        either = np.min(done[:, None] * each + left[:, None] * np.maximum(after, 0.0), 0)
        return float(either.sum()) * shape.pipes / shape.workers

    def _own(self, tables: Tables, shared: bool) -> IntArray:
        """Returns `own_bytes`, worked out once."""
        if (key := (tables.key, shared)) not in self._bytes:
            self._bytes[key] = own_bytes(tables, shared=shared)
        return self._bytes[key]

    def _layer_ns(self, shape: Configuration, sums: tuple[Sum, ...]) -> float:
        """Returns the longest layer with the gradient sum and the update of its stage."""
        tables, work = self.instance.tables(shape), self.work(shape)
        fullest = -(-shape.micros // shape.pipes)
        each = np.arange(tables.layers)
        rate = tables.step_ns_per_element / shape.updaters
        after = _least(sums, tables.summed[each, each + 1]) + updated_alone(tables, shape) * rate
        hop, last = self._hop_ns(shape), shape.stages - 1
        back = 2 * _hops(shape) - _hops_to(shape, np.minimum(each, last))
        begun = work.head + hop * self._hops_before(shape) + fullest * work.total
        returned = work.returned + hop * back + fullest * work.last
        return float((np.maximum(begun, returned) + after).max())

    def _even(self, shape: Configuration) -> bool:
        """Returns whether a sum over more devices takes no less: not where they bring cards, or sum by another name."""
        groups = self.instance.cluster.nodes
        alike = all(g.devices_per_node == 1 for g in groups) or sum(g.count for g in groups) == 1
        return alike and not self.instance.machines.by_name


def _hops_to(shape: Configuration, stage: IntArray) -> IntArray:
    """Returns the messages on the way to a stage: consecutive stages of one worker need none."""
    if FAMILIES[shape.family].in_parts:
        return stage // shape.chunks
    return stage - stage // shape.workers


def _hops(shape: Configuration) -> int:
    """Returns the messages on the way to the last stage."""
    return int(_hops_to(shape, np.array(shape.stages - 1)))


@cache
def _mean_place(workers: int, pipes: int) -> float:
    return float((np.arange(workers) // pipes).mean())


def _heads(shape: Configuration, work: LayerWork, hop: float) -> float:
    """Returns the time to hold all layers where every stage is as large as the stages before it allow."""
    kept = (1.0 - work.part / shape.micros) ** np.arange(shape.workers - 1, -1, -1)
    before = hop * float((np.arange(shape.workers) * kept).sum())
    return (shape.micros * work.all_ns + before) / float(kept.sum())


def _shares(count: int, compute: float, sums: float) -> tuple[FloatArray, FloatArray]:
    """Returns the parts of compute and gradient sum that count for each stage of a worker: the best for equal layers."""
    grown = np.clip(compute / sums, 1e-3, 1e3) ** np.arange(count) if sums > 0 else np.eye(count)[-1]
    share = grown / grown.sum()
    return share[::-1].cumsum()[::-1], share.cumsum()


def _least(sums: tuple[Sum, ...], size: IntArray) -> IntArray:
    found: IntArray = np.minimum.reduce([each.ns(size) for each in sums])
    return found


def _shared_bytes(tables: Tables) -> int:
    """Returns the bytes of parameters that several layers use: their sums may run over other ranks."""
    return sum(p.bytes for p in tables.graph.trained if len(set(p.users)) > 1)
