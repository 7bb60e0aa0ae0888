"""A cut written out as a plan: stages, places, durations, hops, memory and what they predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from planner.arrays import NS_PER_S, IntArray
from planner.choose import LayoutPrice
from planner.configurations import Pins, choice_of, converting_ns, lines_of, shapes, with_conversions
from planner.cost import GridChoice, stage_of
from planner.cuts import COMPUTE, KINDS, CutProblem
from planner.kept import KeptEntries
from planner.layout import Mesh, Wish
from planner.milp.instance import Instance
from planner.model import crossings, stage_of_layers
from planner.plan import (
    Axes,
    Batch,
    Certificate,
    Hop,
    KeptWeights,
    Memory,
    ModelRef,
    Plan,
    Prediction,
    Provenance,
    SampleReading,
    ScheduleChoice,
    StagePlan,
    StageShard,
    StageTimes,
    places,
    uncorrected_conversions,
)
from planner.profile import Profile, SampleCost
from planner.proof import Answer
from planner.schedule import Kind
from planner.simulate import PART_NAMES, compile, duration_vector, period
from planner.sums import SumsByName, today


def plan_of(space: Instance, posed: CutProblem, answer: Answer, certificate: Certificate) -> Plan:
    posed, shape, profile = posed.settled(answer.cut), posed.shape, space.profile
    axes = Axes(data=shape.data, pipeline=shape.workers, spatial=shape.spatial, order=shape.axes)
    stages, messages = _stages(posed, answer.cut, profile), hops(posed, answer.cut)
    given = space.machines, space.costs, shape, posed.tables.setting
    times = with_conversions(stage_times(posed, answer.cut), stages, *given)
    fitted = space.cluster.fitted
    left = 0.0 if fitted is None else min(fitted.step_spread, 1.0)
    unsure = uncorrected_conversions(times, fitted, shape.mesh or (shape.spatial,))
    ends = answer.ns, _spread(posed, answer.cut, unsure, messages, 0)
    high = max(_spread(posed, answer.cut, times, messages, +1), math.ceil(max(ends) * (1 + left)))
    return Plan(
        model=ModelRef(
            workload=profile.workload,
            arguments={k: v for k, v in profile.arguments.items() if isinstance(v, str | int | float | bool)},
            fingerprint=profile.graph.fingerprint,
        ),
        precision="bf16" if space.precision == "bf16" else "fp16" if space.precision == "fp16" else "fp32",
        weights=space.pins.weights,
        execution="compiled" if space.execution == "compiled" else "eager",
        optimizer=profile.optimizer.name,
        shard_optimizer=shape.shard,
        kept=_kept(profile.kept),
        ema=space.pins.ema,
        sums=_sums(space, posed, answer.cut),
        data=_reading(profile.samples),
        batch=Batch(samples=space.batch, micro=shape.micro, micros=shape.micros),
        axes=axes,
        schedule=schedule_choice(posed),
        stages=stages,
        places=places(axes, space.cluster),
        times=times,
        hops=messages,
        prediction=Prediction(
            step_ns=answer.ns,
            low_ns=min(_spread(posed, answer.cut, times, messages, -1), math.floor(min(ends) * (1 - left))),
            high_ns=high,
            memory=memory(posed, answer.cut),
        ),
        certificate=_with_near_rivals(certificate, high),
        provenance=Provenance(
            profile=f"{profile.device} ({profile.source})",
            cluster=space.cluster.name,
            versions=dict(sorted(profile.versions.items())),
        ),
        fitted=fitted,
    )


def _reading(found: SampleCost | None) -> SampleReading | None:
    if found is None:
        return None
    whole, stored = (round((each + found.collate_s) * NS_PER_S) for each in (found.cold_s, found.finish_s))
    batch_ns = round(found.batch_s * NS_PER_S)
    return SampleReading(
        sample_ns=whole, finish_ns=stored, batch_ns=batch_ns, sample_bytes=found.sample_bytes
    )


def _kept(entries: KeptEntries) -> KeptWeights | None:
    if not entries.counts:
        return None
    counts = {} if entries.even else dict(entries.counts)
    return KeptWeights(share=entries.share, digest=entries.digest, counts=counts)


def _sums(space: Instance, posed: CutProblem, cut: IntArray) -> SumsByName | None:
    """Returns how gradients are summed; None where each stage is as a run does it by itself."""
    if posed.shape.holders == 1 or posed.shape.shard or posed.shape.held or posed.shape.mesh:
        return None
    own = str(today(posed.shape.holders))
    names = tuple(
        each.name(int(size)) or own
        for each, size in zip(posed.sums, posed.own_bytes(cut[:-1], cut[1:]), strict=True)
    )
    return SumsByName(by=names, cards=space.cluster.interfaces) if {*names} - {own} else None


def _with_near_rivals(proof: Certificate, high_ns: int) -> Certificate:
    """Returns the proof without those near rivals that the error of the costs tells from the plan."""
    kept = (
        rival
        for rival in proof.rivals
        if rival.kind != "near" or (rival.step_ns is not None and rival.step_ns <= high_ns)
    )
    return proof.model_copy(update={"rivals": tuple(kept)})


def price_group(space: Instance, micro: int, mesh: Mesh, cut: Sequence[Wish]) -> LayoutPrice:
    """Returns what a plan takes whose only axis is a group that has tensors in parts, whether it fits or not.

    Args: `space` has the batch; `micro` is the micro-batch, which divides it. `mesh` is one of `planner.group.on_cluster`.
    """
    alone = Pins(data=1, pipeline=1, schedules=("1f1b",), recompute=False, shard=False)
    choice = GridChoice(mesh=mesh, cut=tuple(cut)) if cut else GridChoice()
    cluster, batch = space.cluster, space.batch
    given = partial(shapes, cluster, layers=space.layers, batch=batch, micros=[micro], pinned=alone)
    shape = next(given(splits=lambda _: (choice,)))
    posed = space.problem(shape)
    assert posed is not None, "one stage has an order"
    ends = np.array([0, posed.layers])
    (times,), (held,) = stage_times(posed, ends), memory(posed, ends)
    ns, sums = int(posed.times(ends[None, :])[0]), times.sync_ns + times.step_ns
    convert = shape.micros * converting_ns(space.machines, space.costs, shape, posed.tables.setting)
    state = held.parameters + held.gradients + held.optimizer
    return LayoutPrice(
        compute_ns=ns - sums - convert,
        convert_ns=convert,
        sum_ns=sums,
        state_bytes=state,
        kept_bytes=held.total - held.margin - state,
    )


def schedule_choice(posed: CutProblem) -> ScheduleChoice:
    order, shape = posed.schedule, posed.shape
    return ScheduleChoice(
        family=order.family,
        pairs=shape.pairs,
        chunks=shape.chunks,
        update=shape.update,
        settings={k: v for k, v in order.settings.items() if k not in ("pairs", "chunks")},
        place=order.place,
        pipe_of=order.pipe_of,
        orders=tuple(order.to_text().split("\n")),
    )


def _stages(posed: CutProblem, cut: IntArray, profile: Profile) -> tuple[StagePlan, ...]:
    names = [layer.name for layer in posed.tables.graph.layers]
    choice, found = choice_of(posed.shape), list[StagePlan]()
    held, ranks = posed.shape.held, posed.shape.ranks
    shard = StageShard(what=held, ranks=ranks if ranks < posed.shape.data else 0, unit="") if held else None
    for p, (i, j) in enumerate(pairwise(cut.tolist())):
        grid, gather, regrid = stage_of(choice, (i, j), names)
        lines = lines_of(posed.shape.cut, profile.graph, names[i:j])
        until = j if posed.until is None else int(posed.until[p])
        found.append(
            StagePlan(
                layers=tuple(names[i:j]),
                recompute=p in posed.order.recomputing,
                recompute_before=names[until] if i < until < j else "",
                spatial=grid,
                gather_before=gather,
                regrid=regrid,
                shard=shard,
                mesh=posed.shape.mesh if len(posed.shape.mesh) > 1 and lines else (),
                cut=lines,
            )
        )
    return tuple(found)


def stage_times(posed: CutProblem, cut: IntArray) -> tuple[StageTimes, ...]:
    table = posed.durations(cut).kinds[0]
    rows = {kind: table[KINDS.index(kind)].tolist() for kind in KINDS}
    again = posed.order.recomputing
    return tuple(
        StageTimes(
            forward_ns=rows[Kind.F][p],
            backward_ns=rows[Kind.B][p],
            input_grad_ns=rows[Kind.I][p],
            weight_grad_ns=rows[Kind.W][p],
            recompute_ns=rows[Kind.R][p] if p in again else 0,
            sync_ns=rows[Kind.SYNC][p],
            step_ns=rows[Kind.STEP][p],
        )
        for p in range(posed.stages)
    )


def hops(posed: CutProblem, cut: IntArray) -> tuple[Hop, ...]:
    spans = posed.durations(cut)
    carried = _carried(posed, cut)
    found = []
    for k, cell in enumerate(spans.cells.tolist()):
        way, pair = divmod(cell, posed.stages**2)
        sender, receiver = divmod(pair, posed.stages)
        direction: Literal["act", "grad"] = "grad" if way else "act"
        found.append(
            Hop(
                direction=direction,
                sender=sender,
                receiver=receiver,
                values=tuple(carried[direction, sender, receiver]),
                bytes=int(spans.hop_bytes[0, k]),
                ns=int(spans.hop_ns[0, k]),
            )
        )
    return tuple(found)


def _carried(posed: CutProblem, cut: IntArray) -> dict[tuple[str, int, int], list[str]]:
    graph = posed.tables.graph
    stage_of = stage_of_layers(posed.layers, [int(c) for c in cut[1:-1]])
    found: dict[tuple[str, int, int], list[str]] = {}
    for crossing in crossings(graph, stage_of):
        ways = [("act", crossing.source, target) for target in crossing.targets]
        if graph.value[crossing.value].needs_grad:
            ways += [("grad", late, early) for early, late in pairwise((crossing.source, *crossing.targets))]
        for way in ways:
            found.setdefault(way, []).append(crossing.value)
    return found


_KEPT = [PART_NAMES.index(name) for name in ("saved", "held", "kept", "shared")]


def memory(posed: CutProblem, cut: IntArray) -> tuple[Memory, ...]:
    """Returns the peak of each worker, by what holds it. The parts add up to what the solver held against the limit."""
    low, high = cut[:-1], cut[1:]
    moving = posed.moving_bytes(low, high)
    parts = {
        "parameters": posed.parameter_bytes(low, high),
        "gradients": posed.gradient_bytes(low, high),
        "optimizer": posed.state_bytes(low, high),
    }
    total = posed.memory(cut[None, :])[0]
    found = []
    for worker, counts in enumerate(posed.hosted):
        held = {name: int(counts @ sizes) for name, sizes in parts.items()}
        moments = posed.moments[worker]
        worst = moments.rows[int(moments.bytes_of(moving).argmax())]
        activations = int((worst[:, _KEPT] * moving[:, _KEPT]).sum())
        found.append(
            Memory(
                **held,
                activations=activations,
                buffers=int(total[worker]) - sum(held.values()) - activations,
                margin=posed.mesh.margin_bytes[worker],
                limit=posed.mesh.capacity_bytes[worker],
            )
        )
    return tuple(found)


def _spread(
    posed: CutProblem, cut: IntArray, times: tuple[StageTimes, ...], messages: tuple[Hop, ...], sign: int
) -> int:
    """Returns the step of the same order with every duration at one end of its spread; for sign 0, as it is."""
    vector = duration_vector(times, messages)
    depth = posed.stages
    for kind in COMPUTE:
        first = KINDS.index(kind) * depth
        spread = np.diff(posed.tables.spread_ns[kind][cut])
        part = vector[first : first + depth]
        vector[first : first + depth] = np.maximum(part + sign * spread, 0)
    compiled = compile(posed.schedule, messages, update=posed.shape.update)
    return period(compiled, vector).period_ns
