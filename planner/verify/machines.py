"""Checks that a plan fits its machines: every rank on a device of its own, in the order in which ranks are
launched, and the batch shared out over replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from planner import cluster as clusters
from planner.cluster import Cluster
from planner.errors import Violation
from planner.plan import Plan, cards_of, coordinates, ranks_of_worker, told_sums, world_size


def rows(plan: Plan) -> Iterator[Violation]:
    """Yields a table of places that has not one row for each rank.

    Args: `plan` may be any; nothing is counted through.
    """
    axes, size = plan.axes, world_size(plan.axes)
    if len(plan.places) != size:
        message = f"{axes.data} x {axes.pipeline} x {axes.spatial} ranks are {size}, not {len(plan.places)}"
        yield Violation(rule="places", where="places", message=message)


def share_rows(plan: Plan) -> Iterator[Violation]:
    """Yields shares that are not one for each replica, and durations of replicas that do not exist.

    Args: `plan` may be any; nothing is counted through.
    """
    shares, data, micros = plan.batch.shares, plan.axes.data, plan.batch.micros
    if shares and (len(shares) != data or max(shares) != micros):
        message = f"are {list(shares)}; {data} replicas need {data}, and the largest is micros, {micros}"
        yield Violation(rule="tables", where="batch.shares", message=message)
    named = [replica for row in plan.replica_times for replica in row.replicas]
    if len(set(named)) != len(named) or any(not 0 < replica < data for replica in named):
        message = f"names the replicas {named}; each at most once, of 1 to {data - 1}"
        yield Violation(rule="tables", where="replica_times", message=message)
    if named and not shares:
        message = "needs batch.shares: replicas with equal shares are timed as their slowest"
        yield Violation(rule="tables", where="replica_times", message=message)
    for index, row in enumerate(plan.replica_times):
        if len(row.times) != len(plan.stages):
            message = f"has {len(row.times)} rows; {len(plan.stages)} stages need {len(plan.stages)}"
            yield Violation(rule="tables", where=f"replica_times[{index}]", message=message)


def batch(plan: Plan) -> Iterator[Violation]:
    """Yields a batch that its parts do not add up to, and a share too small for the pipes of its replica.

    Args: `plan` has a share for each replica, or none.
    """
    own, data = plan.batch, plan.axes.data
    whole = sum(own.shares) if own.shares else own.micros * data
    if own.micro * whole != own.samples:
        parts = f"the sum of shares {whole}" if own.shares else f"micros {own.micros} x data {data}"
        message = f"micro {own.micro} x {parts} = {own.micro * whole}, not {own.samples}"
        yield Violation(rule="batch", where="batch", message=message)
    for replica, share in enumerate(own.shares):
        idle = set(range(len(plan.schedule.place))) - set(plan.schedule.pipe_of[:share])
        if idle:
            message = f"is {share}, which leaves pipe {min(idle)} without a micro-batch; each carries one"
            yield Violation(rule="batch", where=f"batch.shares[{replica}]", message=message)


def table(plan: Plan) -> Iterator[Violation]:
    """Yields what is wrong with the table of places alone.

    Each rank has one row, a device of its own, and its coordinates on the mesh.

    Args: `plan` may be for any cluster; it has a row for each rank.
    """
    axes = plan.axes
    taken: dict[tuple[int, int], int] = {}
    for position, place in enumerate(plan.places):
        where = f"rank {place.rank}"
        if place.rank != position:
            yield Violation(rule="places", where=where, message=f"stands in row {position}; ranks in order")
        first = taken.setdefault((place.node, place.slot), place.rank)
        if first != place.rank:
            message = f"is on node {place.node}, slot {place.slot}, and so is rank {first}"
            yield Violation(rule="places", where=where, message=message)
        at, right = (place.data, place.pipeline, place.spatial), coordinates(axes, position)
        if at != right:
            message = f"is {at} (data, pipeline, spatial); axes.order puts {tuple(right)} there"
            yield Violation(rule="places", where=where, message=message)
    for before, place in pairwise(plan.places):
        if (place.node, place.slot) < (before.node, before.slot):
            message = f"is on a device before that of rank {before.rank}; launchers number ranks node by node"
            yield Violation(rule="places", where=f"rank {place.rank}", message=message)


def violations(plan: Plan, cluster: Cluster) -> list[Violation]:
    """Returns what is wrong with a plan on a cluster: missing devices, and workers that do not fit their devices.

    Args: `plan` may have any table of places; `table` judges the table itself.
    """
    return [*_devices(plan, cluster), *_limits(plan, cluster), *_sums(plan, cluster)]


def _devices(plan: Plan, cluster: Cluster) -> Iterator[Violation]:
    for place in plan.places:
        if not clusters.exists(cluster, place):
            message = f"there is no node {place.node}, slot {place.slot} in cluster '{cluster.name}'"
            yield Violation(rule="places", where=f"rank {place.rank}", message=message)


def _limits(plan: Plan, cluster: Cluster) -> Iterator[Violation]:
    """Yields the workers that do not fit the smallest device that plays them, with its margin kept free."""
    rank_place = {place.rank: place for place in plan.places if clusters.exists(cluster, place)}
    for worker, memory in enumerate(plan.prediction.memory):
        places = [rank_place[rank] for rank in ranks_of_worker(plan.axes, worker) if rank in rank_place]
        if not places:
            continue
        smallest = min(places, key=lambda place: clusters.limit_bytes(cluster, place))
        limit, used = clusters.limit_bytes(cluster, smallest), memory.total - memory.margin
        if used > limit:
            message = f"needs {used} bytes; {limit} are free on node {smallest.node}, slot {smallest.slot}"
            yield Violation(rule="memory", where=f"worker {worker}", message=message)


def _sums(plan: Plan, cluster: Cluster) -> Iterator[Violation]:
    """Yields sums that the machines do not have: names between GPUs, and cards that nodes do not list."""
    if plan.sums is None:
        return
    if not cluster.of_hosts:
        message = f"are {told_sums(plan)}; cluster '{cluster.name}' has GPUs, between which nccl sums"
        yield Violation(rule="sums", where="sums", message=message)
    for interface in cards_of(plan):
        if interface not in cluster.interfaces:
            there = ", ".join(cluster.interfaces) or "none"
            message = f"has '{interface}'; the nodes of cluster '{cluster.name}' list {there}"
            yield Violation(rule="sums", where="sums.cards", message=message)
