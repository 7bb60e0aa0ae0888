"""Uneven shares of the batch, for replicas on devices of different speed.

The search above gives every replica as many micro-batches, so replicas on slow devices hold up all others. Here each
replica is on devices of one speed, and has a share of its own:

    minimise    T = max_r period(shares[r], speed of r)     with  sum_r shares[r] = batch / micro,  shares[r] >= 1

A period never falls as a share grows. So the least T is found among the periods of single shares, exactly, for the cut
and the order at hand. Both come from the same search, asked for the largest share on all replicas: what fits there fits
with smaller shares. The bound for any shares is fluid: all work over the speed of all devices together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heapreplace

from planner.arrays import NS_PER_S
from planner.configurations import profiled_rate, slowness_of
from planner.milp.instance import Instance
from planner.plan import Certificate, Plan, ReplicaTimes, StageTimes
from planner.profile import corrected
from planner.simulate import period_of_plan, period_of_replica

_ALONE, _PIPELINES = ("1f1b", "overlap"), ("1f1b", "zb-h1")  # families tried where none is named
_SCOPE = "uneven shares at the cut and order that are best for the largest share on all replicas"
MOST_TRIED = 8  # degrees and micro-batches whose cut is solved for uneven shares
_SCALED = ("forward_ns", "backward_ns", "input_grad_ns", "weight_grad_ns", "recompute_ns", "step_ns")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Replicas of one speed each, and what their shares could reach at best."""

    data: int
    workers: int
    micro: int
    slowness: tuple[float, ...]  # a replica
    shares: tuple[int, ...]  # as good as they can be if a period grows with its share
    bound_ns: int


def speeds(instance: Instance) -> list[float]:
    """Returns the slowness of every device, as a multiple of the profiled device's times.

    Args: `instance` has the cluster.
    """
    cluster = instance.cluster
    profiled = profiled_rate(cluster, instance.profile.device)
    return [slowness_of(cluster.groups[slot.node], profiled) for slot in instance.machines.slots]


def fluid_ns(instance: Instance) -> int:
    """Returns a lower bound of a step for any shares: all computing, over the speed of all devices together.

    Args: `instance` may have any pins. Where shards of samples were profiled the bound is 0, since they may take less.
    """
    if instance.profile.shards:
        return 0
    rate = sum(1 / slowness for slowness in speeds(instance))
    micros = instance.micros() if instance.pins.micro is None else [instance.pins.micro]
    works = (_work_ns(instance, micro) / micro for micro in micros)
    return math.floor(min(works, default=0.0) * instance.batch / rate)


def _work_ns(instance: Instance, micro: int) -> float:
    """Returns what forward and backward of all layers take on one micro-batch, whichever way the backward is done."""
    graph, profile = instance.profile.graph, corrected(instance.profile, instance.cluster.fitted)
    found = 0.0
    for key, cost in profile.costs.items():
        if (key.micro, key.split, key.precision, key.execution) == (
            micro,
            (),
            instance.precision,
            instance.execution,
        ):
            back = min(cost.backward.median, cost.input_grad.median + cost.weight_grad.median)
            count = sum(layer.signature == key.signature for layer in graph.layers)
            found += count * (cost.forward.median + back)
    return found * NS_PER_S


def degrees(instance: Instance) -> list[Degrees]:
    """Returns the degrees at which replicas of one speed each are not all alike.

    Args: `instance` may have pins, which are kept.
    Returns: the most promising first.
    """
    slow, pinned = speeds(instance), instance.pins
    if (
        len(set(slow)) < 2
        or (pinned.spatial or 1) > 1
        or pinned.cut is not None
        or instance.profile.graph.synchronised
    ):
        return []
    most = min(len(slow), pinned.devices or len(slow))
    found: list[Degrees] = []
    for micro in instance.micros() if pinned.micro is None else [pinned.micro]:
        for workers in range(1, most // 2 + 1) if pinned.pipeline is None else [pinned.pipeline]:
            for data in range(2, most // workers + 1) if pinned.data is None else [pinned.data]:
                found += _degrees(instance, slow, data, workers, micro)
    return sorted(found, key=lambda each: (each.bound_ns, -each.data, each.micro))


def _degrees(
    instance: Instance, slow: Sequence[float], data: int, workers: int, micro: int
) -> Iterator[Degrees]:
    rows = [slow[r * workers : (r + 1) * workers] for r in range(data)]
    alike = all(len(row) == workers and len(set(row)) == 1 for row in rows)
    total, over = divmod(instance.batch, micro)
    own = tuple(row[0] for row in rows) if alike else ()
    if not alike or over or total < data or len(set(own)) < 2:
        return
    shares = split(total, own, lambda share, slowness: share * slowness)
    work = _work_ns(instance, micro) / workers
    bound_ns = math.floor(max(share * s for share, s in zip(shares, own, strict=True)) * work)
    if len(set(shares)) > 1:
        yield Degrees(data=data, workers=workers, micro=micro, slowness=own, shares=shares, bound_ns=bound_ns)


def split(total: int, kinds: Sequence[float], period: Callable[[int, float], float]) -> tuple[int, ...]:
    """Returns the shares whose largest period is least; of equal periods, the smaller share grows.

    Args: `kinds` is what the period of each replica depends on; `period(share, kind)` never falls with the share, so
      that giving each micro-batch to the replica that then ends first is exact.
    """
    shares = [1] * len(kinds)
    ends = [(period(2, kind), 2, r) for r, kind in enumerate(kinds)]
    heapify(ends)
    for _ in range(total - len(kinds)):
        _, share, r = ends[0]
        shares[r] = share
        heapreplace(ends, (period(share + 1, kinds[r]), share + 1, r))
    return tuple(shares)


def uneven(instance: Instance, best: Plan, solve: Callable[[Instance], Plan | None]) -> Plan | None:
    """Returns the fastest plan with uneven shares that is faster than `best`, or None.

    Args: `best` has equal shares; `solve` returns the fastest plan of an instance.
    """
    found, bound = best, fluid_ns(instance)
    for each in degrees(instance)[:MOST_TRIED]:
        if each.bound_ns >= found.prediction.step_ns:
            break
        named = instance.pins.schedules or (_ALONE if each.workers == 1 else _PIPELINES)
        pins = replace(
            instance.pins,
            schedules=named,
            data=each.data,
            pipeline=each.workers,
            micro=each.micro,
            shard=False,
        )
        posed = replace(instance, batch=each.data * each.micro * max(each.shares), pins=pins)
        alike = solve(posed)
        if alike is None or alike.axes.order[0] != "data" or alike.schedule.update != "barrier":
            continue
        plan = _shared_out(instance, alike, each)
        if plan is not None and plan.prediction.step_ns < found.prediction.step_ns:
            found = plan
    if found is best:
        return None
    return found.model_copy(update={"certificate": _proof(found, best, bound)})


def _shared_out(instance: Instance, alike: Plan, chosen: Degrees) -> Plan | None:
    """Returns a plan of equal shares with uneven ones; None where a pipe of a replica would have nothing to do."""
    micro, most = alike.batch.micro, alike.batch.micros
    paced = {s: tuple(_paced(row, s / max(chosen.slowness)) for row in alike.times) for s in chosen.slowness}
    own = paced[chosen.slowness[0]]
    others = tuple(
        ReplicaTimes(replicas=tuple(r for r, x in enumerate(chosen.slowness) if x == s), times=times)
        for s, times in paced.items()
        if s != chosen.slowness[0]
    )
    whole = alike.model_copy(update={"times": own, "replica_times": others})

    @cache
    def period(share: int, slowness: float) -> float:
        if share > most:  # longer than any order at hand: never chosen
            return math.inf
        alone = whole.batch.model_copy(update={"shares": (share,)})
        return period_of_replica(
            whole.model_copy(update={"batch": alone, "times": paced[slowness], "replica_times": ()}), 0
        )

    shares = split(instance.batch // micro, chosen.slowness, period)
    pipes = set(range(len(alike.schedule.place)))
    if max(shares) != most or pipes - set(alike.schedule.pipe_of[: min(shares)]):
        return None
    batch = alike.batch.model_copy(update={"shares": shares, "samples": instance.batch})
    plan = whole.model_copy(update={"batch": batch})
    step_ns, seen = period_of_plan(plan), alike.prediction
    bar = (step_ns * end / max(seen.step_ns, 1) for end in (seen.low_ns, seen.high_ns))
    low, high = (math.floor(next(bar)), math.ceil(next(bar)))
    ends = {"step_ns": step_ns, "low_ns": min(low, step_ns), "high_ns": max(high, step_ns)}
    return plan.model_copy(update={"prediction": seen.model_copy(update=ends)})


def _paced(times: StageTimes, factor: float) -> StageTimes:
    """Returns durations of computing by so many times as long; a gradient sum takes what it takes for all."""
    return times.model_copy(update={key: math.ceil(getattr(times, key) * factor) for key in _SCALED})


def _proof(plan: Plan, equal: Plan, bound_ns: int) -> Certificate | None:
    """Returns what is proved of a plan with uneven shares: how far it is from every share whatever, by the fluid bound."""
    own, base = plan.certificate, equal.certificate
    if own is None or base is None or base.chosen is None or base.space is None:
        return None
    step_ns = plan.prediction.step_ns
    least = min(step_ns, bound_ns)
    rivals = (base.chosen.model_copy(update={"kind": "near"}), *base.rivals)
    return base.model_copy(
        update={
            "objective_ns": step_ns,
            "bound_ns": least,
            "own_order_bound_ns": None,
            "order_free_bound_ns": least,
            "space": base.space.model_copy(update={"limits": (*base.space.limits, _SCOPE)}),
            "chosen": own.chosen and own.chosen.model_copy(update={"step_ns": step_ns}),
            "rivals": rivals,
        }
    )
