"""Derives from a plan the order of the layers that it cuts, the model in that order, the schedule, its ranks, and
what the model does not allow of it.

A plan's stages, one after the other, name all layers. That is the order the cuts are made in; nothing else says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal, NamedTuple

from planner import cluster as clusters
from planner.cluster import Cluster
from planner.errors import BadPlan, Infeasible, Violation
from planner.model import ModelGraph, misplaced, refusals
from planner.plan.certificate import StageTimes
from planner.plan.cuts import refused_cuts
from planner.plan.kept_weights import refused_weights
from planner.plan.plan import Axes, Place, Plan, StagePlan
from planner.plan.sharding import refused_shards, refused_sums, shard_of, shared_by_element
from planner.schedule import Kind, Schedule, parse_orders, updates_at_use

UNSEEN = 0.01  # of a step: shorter reading needs no process of its own


def layers_of(plan: Plan) -> tuple[str, ...]:
    """Returns the names of all layers in the order of the plan.

    Args: `plan` need not be right for any model.
    """
    return tuple(name for stage in plan.stages for name in stage.layers)


def as_planned(graph: ModelGraph, plan: Plan) -> ModelGraph:
    """Returns the model with its layers in the order of a plan.

    Args: `graph` is returned as it is where the plan's layers are others.
    Raises: BadPlan where a layer stands before one whose output it reads.
    """
    names = layers_of(plan)
    if sorted(names) != sorted(layer.name for layer in graph.layers):
        return graph
    if wrong := next(misplaced(graph, names), None):
        raise BadPlan(f"layer '{wrong[0]}' stands before '{wrong[1]}', which it hangs on")
    return graph.ordered(names)


def schedule_of(plan: Plan, replica: int | None = None) -> Schedule:
    """Returns the schedule that a plan's orders say.

    Args: `plan` may have any orders; whether they can run is not checked. With a `replica`, the schedule is that of
      its share: the same orders without the last micro-batches.
    """
    choice = plan.schedule
    whole = Schedule(
        family=choice.family,
        place=choice.place,
        pipe_of=choice.pipe_of,
        orders=parse_orders(choice.orders),
        settings=dict(choice.settings),
    )
    share = whole.micros if replica is None else plan.batch.share(replica)
    return whole if share >= whole.micros else shortened(whole, share)


def shortened(schedule: Schedule, micros: int) -> Schedule:
    """Returns a schedule of its first micro-batches alone.

    What is left can run where the whole can, and holds no more at any time: dependences join actions of one
    micro-batch only.
    Args: `micros` is at most as many as the schedule has.
    """
    once = (Kind.SYNC, Kind.STEP)
    orders = (tuple(a for a in order if a.kind in once or a.micro < micros) for order in schedule.orders)
    return replace(schedule, pipe_of=schedule.pipe_of[:micros], orders=tuple(orders))


def times_of(plan: Plan, replica: int) -> tuple[StageTimes, ...]:
    """Returns the durations of every stage on the devices of one replica.

    Args: `replica` is a number along the data axis.
    """
    own = (row.times for row in plan.replica_times if replica in row.replicas)
    return next(own, plan.times)


def distinct_replicas(plan: Plan) -> tuple[int, ...]:
    """Returns one replica for every pair of share and durations; replica 0 alone where all are alike.

    Args: `plan` may have any shares, as long as it has one for every replica.
    """
    count = len(plan.batch.shares) or 1
    found = {(plan.batch.share(r), times_of(plan, r)): r for r in reversed(range(count))}
    return tuple(sorted(found.values()))


def stage_rows(plan: Plan) -> list[dict[str, object]]:
    """Returns a row for each stage, as data.

    Returns: its workers and layers, durations in nanoseconds, and the bytes that it sends a micro-batch.
    """
    return [
        {
            "stage": index,
            "workers": sorted({row[index] for row in plan.schedule.place}),
            "layers": list(stage.layers),
            "forward_ns": times.forward_ns,
            "backward_ns": times.backward_ns,
            "recompute": stage.recompute_before or stage.recompute,
            "sent_bytes": sum(hop.bytes for hop in plan.hops if hop.sender == index),
        }
        for index, (stage, times) in enumerate(zip(plan.stages, plan.times, strict=True))
    ]


def places(axes: Axes, cluster: Cluster, used_nodes: Sequence[int] | None = None) -> tuple[Place, ...]:
    """Returns one place a rank, on the devices of the cluster in the order in which launchers number tasks.

    Args: `used_nodes` are the nodes to fill, in their order; None is for all.
    Raises: Infeasible where these nodes have too few devices.
    """
    needed = world_size(axes)
    found = [slot for slot, _ in zip(clusters.slots(cluster, used_nodes), range(needed), strict=False)]
    if len(found) < needed:
        nodes = "its nodes" if used_nodes is None else f"{len(used_nodes)} of its nodes"
        raise Infeasible(
            f"{axes.data} x {axes.pipeline} x {axes.spatial} (data x pipeline x spatial) needs {needed} devices; "
            f"{nodes} in cluster '{cluster.name}' have {len(found)}"
        )
    return tuple(
        Place(rank=rank, node=slot.node, slot=slot.slot, **coordinates(axes, rank)._asdict())
        for rank, slot in enumerate(found)
    )


class Coordinates(NamedTuple):
    """The place of a rank on the mesh: its number along each axis."""

    data: int
    pipeline: int
    spatial: int


def world_size(axes: Axes) -> int:
    """Returns the number of ranks.

    Args: `axes` are the degrees of the mesh.
    """
    return axes.data * axes.pipeline * axes.spatial


def coordinates(axes: Axes, rank: int) -> Coordinates:
    """Returns where a rank stands on the mesh; ranks count along the innermost axis first.

    Args: `rank` is from 0 to `world_size` - 1.
    """
    found = {}
    for axis in reversed(axes.order):
        rank, found[axis] = divmod(rank, getattr(axes, axis))
    return Coordinates(**found)


def rank_of(axes: Axes, at: Coordinates) -> int:
    """Returns the rank at some coordinates.

    Args: `at` is within the degrees of `axes`.
    """
    rank = 0
    for axis in axes.order:
        rank = rank * int(getattr(axes, axis)) + int(getattr(at, axis))
    return rank


def ranks_of_worker(axes: Axes, worker: int) -> tuple[int, ...]:
    """Returns every rank that plays one pipeline worker, in order: its data replicas and spatial shards.

    Args: `worker` is a number along the pipeline axis.
    """
    shards = [(data, spatial) for data in range(axes.data) for spatial in range(axes.spatial)]
    return tuple(sorted(rank_of(axes, Coordinates(data, worker, spatial)) for data, spatial in shards))


def refused(plan: Plan, graph: ModelGraph, joint: str = "", whole: str = "") -> Iterator[Violation]:
    """Yields what the model itself does not allow of a plan, as `planner.model.refusals` has it.

    Args: `graph` is the model, in any order; `joint` names an optimizer that looks at all parameters together, and
        `whole` one that needs whole parameters.
    """
    yield from refused_shards(plan, graph, whole)
    yield from refused_cuts(plan, graph, whole or joint)
    yield from refused_weights(plan, graph)
    yield from refused_sums(plan)
    yield from _refused_at_use(plan, graph)
    if plan.batch.shares and graph.synchronised:
        message = f"'{graph.synchronised[0]}' has a SyncBatchNorm, whose replicas need equal shares"
        yield Violation(rule="batch", where="batch.shares", message=message)
    if plan.batch.shares and shared_by_element(plan):
        message = "replicas that share elements gather and sum them together, so they need equal shares"
        yield Violation(rule="batch", where="batch.shares", message=message)
    yield from refusals(
        graph,
        data=plan.axes.data,
        spatial=plan.axes.spatial,
        pipes=schedule_of(plan).pipes,
        compiled=plan.execution == "compiled",
        micro=plan.batch.micro,
        stages=len(plan.stages),
        shard=any(shard_of(plan, stage) is not None for stage in range(len(plan.stages))),
        joint=joint,
    )


def _refused_at_use(plan: Plan, graph: ModelGraph) -> Iterator[Violation]:
    """Yields what needs all gradients before the first update, where a plan updates a stage when it is first used."""
    if not updates_at_use(schedule_of(plan)):
        return
    shared = any(shard_of(plan, stage) is not None for stage in range(len(plan.stages)))
    reasons = {
        "update: barrier, which waits for every gradient": plan.schedule.update == "barrier",
        "fp16: its scaler leaves a step out when any gradient overflowed": plan.precision == "fp16",
        "a loss of (sum, count): its mean is known when every micro-batch is counted": graph.loss_kind
        == "sum_count",
        "what replicas share: updates are handed round on the link that the sums are on": shared,
    }
    for reason in (reason for reason, met in reasons.items() if met):
        message = f"updates at use cannot be had with {reason}; plan with update: barrier"
        yield Violation(rule="update", where="schedule.settings", message=message)


def grids_of(stage: StagePlan) -> tuple[tuple[int, ...], ...]:
    """Returns the grids that samples lie on in a stage, one after the other; none where samples are whole throughout.

    Args: `stage` may change its grid on the way.
    """
    turned = (turn.spatial for turn in stage.regrid if not turn.samples)
    return (*([stage.spatial] if stage.spatial else []), *turned)


def shared_from(stage: StagePlan) -> str:
    """Returns the name of the layer from which on ranks share the samples of a stage; empty where they do not.

    Args: `stage` is any stage of a plan.
    """
    return next((turn.before for turn in stage.regrid if turn.samples), "")


def reading_ns(plan: Plan) -> int:
    """Returns what one reader takes for the samples of a step that a rank needs, in nanoseconds.

    Args: `plan` has no `data` where that is not known, which gives 0. From a store, samples are finished and joined.
    """
    if plan.data is None:
        return 0
    micros = max(plan.batch.shares or (plan.batch.micros,))
    return micros * (plan.data.batch_ns + plan.batch.micro * plan.data.each_ns)


def with_store(plan: Plan, store: Literal["none", "ram"]) -> Plan:
    """Returns a plan as a run trains by it whose samples are in `store`, whatever the plan asked for."""
    if plan.data is None:
        return plan
    return plan.model_copy(update={"data": plan.data.model_copy(update={"store": store})})


def awaited_ns(plan: Plan, workers: int) -> int:
    """Returns a step with the time in which ranks wait for samples, in nanoseconds.

    Args: `workers` are the processes of a rank that read; without any, the rank reads before each step.
    """
    step_ns, read_ns = plan.prediction.step_ns, reading_ns(plan)
    return max(step_ns, ceil(read_ns / workers)) if workers else step_ns + read_ns


def readers(plan: Plan, cores: int) -> int:
    """Returns the least number of readers of a rank that hides reading behind a step.

    Args: `cores` are those of a rank. One of them computes, and there is one reader at least where it is needed.
    """
    step_ns, read_ns = plan.prediction.step_ns, reading_ns(plan)
    if read_ns <= UNSEEN * step_ns:
        return 0
    return max(1, min(ceil(read_ns / max(1, step_ns)), cores - 1))
