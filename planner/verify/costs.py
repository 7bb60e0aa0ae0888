"""Checks times and memory of a plan against the profile, reckoned without the solver's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from math import ceil, prod

from planner.arrays import NS_PER_S
from planner.cluster import Cluster
from planner.cost import copies_of_statistics, losses_held, setting_of, stage_bytes, step_bytes
from planner.errors import Violation
from planner.group import on_group
from planner.kept import KeptEntries
from planner.model import ModelGraph, Parameter
from planner.plan import (
    BY_ELEMENT,
    Plan,
    StagePlan,
    graph_on_group,
    grids_of,
    is_cut,
    kept_of,
    refused_cuts,
    schedule_of,
    shard_of,
    shared_from,
    updaters,
    with_halved,
)
from planner.profile import CostKey, LayerCost, Profile, corrected
from planner.schedule import Kind, Schedule
from planner.simulate import StageBytes, peaks

_INDEX_BYTES = 4  # of a kept entry


def violations(plan: Plan, profile: Profile, cluster: Cluster | None = None) -> list[Violation]:
    """Returns what is wrong with the times and the memory of a plan.

    Args: `plan` has the layers of the profile's graph. The profile is corrected by the plan's own corrections. Where it
        has several types of devices, `cluster` says which a stage runs on; without it, the fastest counts.
    """
    kept = KeptEntries(kept_of(plan, profile.graph))
    profile = replace(corrected(profile, plan.fitted), kept=kept)
    profile = with_halved(profile) if plan.weights == "bf16" else profile
    if is_cut(plan):
        if next(refused_cuts(plan, profile.graph), None) or list(_profiled(plan, profile)):
            return list(_profiled(plan, profile))
        alike = replace(profile, types={})
        profile = on_group(alike, setting_of(plan), graph_on_group(plan, profile.graph), None)
    wrong = list(_profiled(plan, profile))
    return wrong or [*_times(plan, _of_stages(plan, profile, cluster)), *_memory(plan, profile)]


def _of_stages(plan: Plan, profile: Profile, cluster: Cluster | None) -> list[list[Profile]]:
    """Returns the profiles of the devices that each stage runs on."""
    types, found = profile.by_type, []
    nodes = len(cluster.groups) if cluster is not None else 0
    for stage in range(len(plan.stages)):
        workers = {row[stage] for row in plan.schedule.place}
        on = {place.node for place in plan.places if place.pipeline in workers and place.node < nodes}
        devices = sorted({cluster.groups[node].device for node in on}) if cluster is not None else []
        found.append([types[device] for device in devices if device in types] or [profile])
    return found


def _before(stage: StagePlan) -> str:
    return stage.recompute_before if stage.recompute_before in stage.layers[1:] else ""


def _rows(plan: Plan, profile: Profile, stage: StagePlan, name: str) -> list[LayerCost]:
    """Returns the rows that a layer may cost: whole samples first, then a share of the samples, then its shards."""
    whole = setting_of(plan)._replace(signature=profile.graph.layer[name].signature)
    found = [profile.costs[whole]]
    if name in _sharing(stage):
        found.append(profile.costs[whole._replace(micro=plan.batch.micro // plan.axes.spatial)])
    cut = (profile.costs.get(whole._replace(split=grid)) for grid in grids_of(stage))
    return [*found, *(row for row in cut if row is not None)]


def _sharing(stage: StagePlan) -> tuple[str, ...]:
    """Returns the layers of a stage in which ranks share the samples."""
    first = shared_from(stage)
    return stage.layers[stage.layers.index(first) :] if first in stage.layers else ()


def _profiled(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """Micro-batch, grid, precision and execution were profiled for every layer; nothing is interpolated."""
    known = "; ".join(
        f"micro {k.micro}, {k.split}, {k.precision}, {k.execution}"
        for k in (*profile.settings, *profile.shards)
    )
    key = setting_of(plan)
    for index, stage in enumerate(plan.stages):
        for grid in grids_of(stage):
            if key._replace(split=grid) not in profile.shards:
                message = f"no layer was profiled on shards {list(grid)} at these settings; there is {known}"
                yield Violation(rule="profile", where=f"stage {index}", message=message)
        shared, share = _sharing(stage), plan.batch.micro // plan.axes.spatial
        for name in stage.layers:
            for micro in (key.micro, share) if name in shared else (key.micro,):
                row = key._replace(signature=profile.graph.layer[name].signature, micro=micro)
                if row not in profile.costs:
                    why = profile.failures.get(row, f"not profiled; there is {known}")
                    setting = f"micro {micro}, {key.split}, {key.precision}, {key.execution}"
                    message = f"stage {index} at {setting}: {why}"
                    yield Violation(rule="profile", where=f"layer '{name}'", message=message)


def _times(plan: Plan, profiles: Sequence[Sequence[Profile]]) -> Iterator[Violation]:
    """No stage is planned faster than its layers were profiled, but for rounding each to whole nanoseconds.

    The halves of the first stage are not held against the profile: where no gradient of its input is needed, the
    work moves between them.
    Args: `profiles` are those of each stage's devices.
    """
    used = {(a.stage, a.kind) for order in schedule_of(plan).orders for a in order}
    for index, profile in ((index, own) for index, row in enumerate(profiles) for own in row):
        stage, times = plan.stages[index], plan.times[index]
        costs = [_rows(plan, profile, stage, name) for name in stage.layers]
        forward_s = sum(min(c.forward.median for c in each) for each in costs)
        gathered_s = sum(_gathered_s(profile, name) for name in stage.layers)
        backward_s = sum(min(c.backward.median for c in each) for each in costs) + gathered_s
        again = stage.layers.index(_before(stage)) if _before(stage) else len(costs)
        again_s = sum(min(c.forward.median for c in each) for each in costs[:again])
        rows = [
            (Kind.F, "forward_ns", times.forward_ns, forward_s),
            (Kind.B, "backward_ns", times.backward_ns, backward_s),
            (Kind.R, "recompute_ns", times.recompute_ns, again_s),
        ]
        if index > 0:
            halves = sum(min(c.input_grad.median + c.weight_grad.median for c in each) for each in costs)
            halves += gathered_s
            planned = times.input_grad_ns + times.weight_grad_ns
            rows.append((Kind.W, "input_grad_ns + weight_grad_ns", planned, halves))
        for kind, key, planned, seconds in rows:
            if (index, kind) in used and planned + 2 * len(costs) < seconds * NS_PER_S:
                message = f"{key} is {planned}, but its layers take {ceil(seconds * NS_PER_S)}"
                yield Violation(rule="times", where=f"stage {index}", message=message)


def _gathered_s(profile: Profile, layer: str) -> float:
    """Returns what a layer takes to gather the gradients of the kept entries of its parameters."""
    names = set(profile.graph.layer[layer].parameters)
    return sum(profile.kept.counts.get(name, 0) for name in names) * profile.optimizer.gather_s


def _memory(plan: Plan, profile: Profile) -> Iterator[Violation]:
    """Yields the workers whose planned memory is less than their stages and their order need at least."""
    schedule = schedule_of(plan)
    found = peaks(schedule, [_needs(plan, profile, stage) for stage in range(len(plan.stages))])
    for worker, planned in enumerate(plan.prediction.memory):
        held, moving = _resident(plan, profile, schedule, worker), found[worker].bytes
        said = planned.total - planned.margin
        if held + moving > said:
            message = (
                f"needs at least {held} bytes of state and {moving} of activations; the plan says {said}"
            )
            yield Violation(rule="memory", where=f"worker {worker}", message=message)


def _resident(plan: Plan, profile: Profile, schedule: Schedule, worker: int) -> int:
    """Returns the bytes of state of every (pipe, stage) of a worker, and what each holds throughout a step."""
    total, losses = 0, losses_held(schedule)
    for row in schedule.place:
        for stage, holder in enumerate(row):
            if holder == worker:
                total += _stage_state(plan, profile, stage)
                total += _stage_step(plan, profile, stage, replicas=len(schedule.place), losses=losses)
    return total


def _stage_step(plan: Plan, profile: Profile, stage: int, *, replicas: int, losses: int) -> int:
    holders, chosen = replicas * plan.axes.data * plan.axes.spatial, plan.stages[stage]
    copies = copies_of_statistics(holders, recompute=chosen.recompute)
    return step_bytes(profile, chosen.layers, setting_of(plan), losses=losses, copies=copies)


def _stage_state(plan: Plan, profile: Profile, stage: int) -> int:
    graph: ModelGraph = profile.graph
    layers = [graph.layer[name] for name in plan.stages[stage].layers]
    parameters = [graph.parameter[name] for name in {name for layer in layers for name in layer.parameters}]
    buffers = [graph.buffer[name] for name in {name for layer in layers for name in layer.buffers}]
    trained = [parameter for parameter in parameters if parameter.trainable]
    updated = {p.name: profile.kept.counts.get(p.name, prod(p.shape)) for p in trained}
    owned = _owned(plan, graph, trained, stage)
    state = sum(updated[name] for name in owned) * profile.optimizer.state_bytes_per_parameter
    state += len(trained) * profile.optimizer.state_bytes_per_tensor
    share, shard = updaters(plan, stage), shard_of(plan, stage)
    first = stage == 0  # its worker keeps what no layer uses
    unused = sum(p.bytes for p in graph.parameters if first and not p.users)
    unused += sum(b.bytes for b in graph.buffers if first and not b.users)
    weights = sum(p.bytes for p in parameters) + sum(b.bytes for b in buffers) + unused
    weights -= sum(p.bytes // 2 for p in trained if p.name in profile.halved)
    gradients = sum(updated[p.name] * p.bytes // prod(p.shape) if prod(p.shape) else 0 for p in trained)
    apart = [p for p in trained if p.name in profile.halved or p.name in profile.kept.counts]
    weights += sum(updated[p.name] * p.bytes // prod(p.shape) for p in apart)
    weights += sum(updated[p.name] * _INDEX_BYTES for p in apart if p.name in profile.kept.counts)
    if shard is not None and shard.what == "parameters":
        weights += gradients // share - gradients
    parted = shard is not None and shard.what in BY_ELEMENT
    own = gradients // share if parted else gradients
    weights += own if plan.ema else 0
    return weights + own + int(state / share)


def _owned(plan: Plan, graph: ModelGraph, trained: Sequence[Parameter], stage: int) -> list[str]:
    """Returns whose state the holders of a stage have: where whole parameters are dealt out, the last stage has it."""
    shard = shard_of(plan, stage)
    if shard is None or shard.what != "state":
        return [row.name for row in trained]
    layers = plan.stages[stage].layers
    return [row.name for row in trained if max(row.users, key=graph.index.__getitem__) in layers]


def _needs(plan: Plan, profile: Profile, number: int) -> StageBytes:
    """Returns the least that one micro-batch takes in a stage, by part.

    On shards this is the largest shard's even share of what layers keep, from whole samples or from shards,
    whichever is less.
    """
    stage = plan.stages[number]
    shards = plan.axes.spatial if stage.spatial else 1
    rows = {} if shards == 1 else dict(_leanest(plan, profile, stage, shards))
    least = replace(profile, costs={**profile.costs, **rows}) if rows else profile
    again = stage.recompute
    found = stage_bytes(
        least,
        stage.layers,
        setting_of(plan),
        recompute=again,
        before=_before(stage),
        shard=shard_of(plan, number),
    )
    found = replace(found, update=found.update // updaters(plan, number))
    if shards == 1:
        return _of_parts(found, plan.axes.spatial)
    parts = {name: size // shards for name, size in asdict(found).items()}
    return StageBytes(**parts | {"workspace": 0, "reversing": 0})


_BETWEEN = (
    "kept",
    "shared",
    "arriving",
    "near",
    "crossing",
    "sent",
    "handed",
    "returning",
    "back",
    "far",
    "unanswered",
)


def _of_parts(found: StageBytes, shards: int) -> StageBytes:
    """Returns the parts with shares of what neighbours send or get, since these may be in shards."""
    return replace(
        found,
        workspace=found.workspace if shards == 1 else 0,
        reversing=found.reversing if shards == 1 else 0,
        **{name: getattr(found, name) // shards for name in _BETWEEN},
    )


def _leanest(
    plan: Plan, profile: Profile, stage: StagePlan, shards: int
) -> Iterator[tuple[CostKey, LayerCost]]:
    for name in stage.layers:
        whole, *cut = _rows(plan, profile, stage, name)
        if cut:
            key = setting_of(plan)._replace(signature=profile.graph.layer[name].signature)
            yield (
                key,
                replace(
                    whole,
                    own_saved_bytes=min(whole.own_saved_bytes, *(x.own_saved_bytes * shards for x in cut)),
                    held_bytes=min(whole.held_bytes, *(x.held_bytes * shards for x in cut)),
                    walks=whole.walks and all(x.walks for x in cut),
                    walked_bytes=min(whole.walked_bytes, *(x.walked_bytes * shards for x in cut)),
                    kept_inputs=tuple(i for i in whole.kept_inputs if all(i in x.kept_inputs for x in cut)),
                    kept_outputs=tuple(
                        i for i in whole.kept_outputs if all(i in x.kept_outputs for x in cut)
                    ),
                ),
            )
