"""Searches again for the order of weight gradients and gradient sums, with the durations that a run was measured to
have.

Takes corrections out of a plan's times or puts them in, and predicts again; decisions stay as they are.

Fits lines through what was planned and what was measured, in any unit; also the peaks of devices beside their
plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor
from statistics import median

from planner.arrays import NS_PER_S
from planner.calibrate.lines import Sample, line_through
from planner.cluster import (
    Cluster,
    Correction,
    Corrections,
    MemoryCorrection,
    NodeGroup,
    with_node_groups,
)
from planner.errors import BadInput
from planner.plan import Hop, Plan, StageTimes, coordinates, mesh_of, uncorrected_conversions
from planner.schedule import Kind, Overlap, Schedule, generate, overlap_of, overlapped, with_recompute
from planner.simulate import best_overlap, period_of_plan
from planner.timeline import COLLECTIVE, WARM_UP_STEPS, Timeline, decode

FAMILY = "overlap"
Found = Mapping[tuple[str, int], int]  # event and stage -> nanoseconds


def refined(plan: Plan, measured: Timeline) -> Plan:
    """Returns the plan with measured times and with the best order for them, which is its own where no other is
    faster.

    The prediction is what these times amount to. A certificate for other costs is not kept.

    Args: `measured` is the timeline of a run of the plan.
    Raises: BadInput where the plan is of another family than overlap, or no step was measured.
    """
    if plan.schedule.family != FAMILY:
        raise BadInput(f"a plan of the family {plan.schedule.family}", where="refine", allowed=FAMILY)
    timed = plan.model_copy(update={"times": measured_times(plan, measured), "certificate": None})
    own = _predicted(timed)
    if overlap_of(dict(plan.schedule.settings)).updates == "at_end":
        return own  # every gradient is waited for: their order gains nothing
    parts, whole = plan.schedule.chunks, _whole(plan)
    best = best_overlap(whole, timed.times, timed.hops, parts=parts, update="rolling").overlap
    other = _predicted(_ordered(timed, best))
    return other if other.prediction.step_ns < own.prediction.step_ns else own


def _whole(plan: Plan) -> Schedule:
    warmup = plan.schedule.settings.get("warmup", plan.axes.pipeline)
    return generate("1f1b", workers=plan.axes.pipeline, micros=plan.batch.micros, warmup=warmup)


def _ordered(plan: Plan, overlap: Overlap) -> Plan:
    schedule = overlapped(_whole(plan), overlap)
    schedule = with_recompute(schedule, [i for i, stage in enumerate(plan.stages) if stage.recompute])
    settings = {name: value for name, value in plan.schedule.settings.items() if name == "warmup"}
    settings |= replace(overlap, parts=1).settings()
    orders = tuple(schedule.to_text().split("\n"))
    choice = plan.schedule.model_copy(update={"orders": orders, "settings": settings})
    return plan.model_copy(update={"schedule": choice})


def _predicted(plan: Plan) -> Plan:
    """Returns the plan with the step that its times amount to, and with error bars as wide as they were."""
    step, old = period_of_plan(plan), plan.prediction
    low, high = (round(step * ns / max(old.step_ns, 1)) for ns in (old.low_ns, old.high_ns))
    prediction = old.model_copy(
        update={"step_ns": step, "low_ns": min(low, step), "high_ns": max(high, step)}
    )
    return plan.model_copy(update={"prediction": prediction})


def measured_times(plan: Plan, measured: Timeline) -> tuple[StageTimes, ...]:
    """Returns the median times of every stage.

    Halves that were not done are scaled as the whole backward. Other actions that were not done keep their planned
    time.

    Args: `measured` is the timeline of a run of the plan; steps to warm up are left out.
    Raises: BadInput where no step was measured.
    """
    steps = sorted(set(measured.step.tolist()))
    if not steps:
        raise BadInput("no step was measured", where="refine")
    first = steps[min(WARM_UP_STEPS, len(steps) - 1)]
    found = _medians(measured, first)
    return tuple(_times(stage, times, found) for stage, times in enumerate(plan.times))


def _times(stage: int, planned: StageTimes, found: Found) -> StageTimes:
    def of(kind: str, otherwise: int) -> int:
        return found.get((kind, stage), otherwise)

    whole = of(Kind.B, planned.backward_ns)
    scale = whole / planned.backward_ns if planned.backward_ns else 1.0
    return StageTimes(
        forward_ns=of(Kind.F, planned.forward_ns),
        backward_ns=whole,
        input_grad_ns=of(Kind.I, round(planned.input_grad_ns * scale)),
        weight_grad_ns=of(Kind.W, round(planned.weight_grad_ns * scale)),
        recompute_ns=of(Kind.R, planned.recompute_ns),
        sync_ns=of(COLLECTIVE, planned.sync_ns),
        step_ns=of(Kind.STEP, planned.step_ns),
    )


def _medians(measured: Timeline, first_step: int) -> Found:
    rows: dict[tuple[str, int], list[int]] = {}
    sums: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (step, stage) -> end, start, rank
    columns = (measured.step, measured.rank, measured.code, measured.start_ns, measured.end_ns)
    for step, rank, code, start, end in zip(*(column.tolist() for column in columns), strict=True):
        event = decode(code)
        if step < first_step:
            continue
        if event.name == COLLECTIVE:
            sums.setdefault((step, event.stage), []).append((end, start, rank))
        else:
            rows.setdefault((event.name, event.stage), []).append(end - start)
    for (_, stage), ns in _alone(sums).items():
        rows.setdefault((COLLECTIVE, stage), []).append(ns)
    return {key: round(median(values)) for key, values in rows.items()}


def _alone(sums: Mapping[tuple[int, int], list[tuple[int, int, int]]]) -> dict[tuple[int, int], int]:
    """Returns what each sum took by itself: from its last launch, or the end of the sum before it on the same rank."""
    before: dict[int, int] = {}
    found = {}
    for key, ranks in sorted(sums.items(), key=lambda item: max(item[1])):
        launched = max(start for _, start, _ in ranks)
        free = max((before.get(rank, 0) for _, _, rank in ranks), default=0)
        end = max(end for end, _, _ in ranks)
        found[key] = max(0, end - max(launched, free))
        before |= {rank: end for end, _, rank in ranks}
    return found


_Change = Callable[[Correction | None, int], int]


def nominal_plan(plan: Plan) -> Plan:
    """Returns the plan without the corrections that it was made with, and without its certificate.

    Args: `plan` is returned as it is where it was made without corrections.
    """
    return plan if plan.fitted is None else _with_times(plan, plan.fitted, _out, None)


def repredicted(plan: Plan, fitted: Corrections) -> Plan:
    """Returns the plan with other corrections in place of those that it was made with, and without its certificate.

    Args: `fitted` has the error bar of the step as well.
    """
    return _with_times(nominal_plan(plan), fitted, _in, fitted)


def _in(correction: Correction | None, planned_ns: int) -> int:
    return planned_ns if correction is None else round(correction.seconds(planned_ns / NS_PER_S) * NS_PER_S)


def _out(correction: Correction | None, corrected_ns: int) -> int:
    if correction is None:
        return corrected_ns
    return max(0, round((corrected_ns - correction.start_s * NS_PER_S) / correction.factor))


def _with_times(plan: Plan, by: Corrections, change: _Change, fitted: Corrections | None) -> Plan:
    changed = plan.model_copy(
        update={
            "times": tuple(_stage(times, by, change) for times in plan.times),
            "hops": tuple(_hop(plan, hop, by, change) for hop in plan.hops),
            "fitted": fitted,
        }
    )
    step, left = period_of_plan(changed), min(by.step_spread, 1.0) if fitted else 0.0
    unsure = uncorrected_conversions(changed.times, fitted, mesh_of(plan))
    other = period_of_plan(changed.model_copy(update={"times": unsure}))
    bars = {"low_ns": floor(min(step, other) * (1 - left)), "high_ns": ceil(max(step, other) * (1 + left))}
    prediction = plan.prediction.model_copy(update={"step_ns": step, **bars})
    return changed.model_copy(update={"prediction": prediction, "certificate": None})


def _stage(times: StageTimes, by: Corrections, change: _Change) -> StageTimes:
    """Returns times of which computing and conversions have each been changed by themselves."""
    ahead, back = times.forward_conversions_ns, times.backward_conversions_ns

    def moved(ns: int) -> int:
        return change(by.conversion, ns) if ns else 0

    def with_moved(correction: Correction | None, ns: int, conversions_ns: int) -> int:
        return change(correction, max(0, ns - conversions_ns)) + moved(min(ns, conversions_ns))

    return StageTimes(
        forward_ns=with_moved(by.forward, times.forward_ns, ahead),
        backward_ns=with_moved(by.backward, times.backward_ns, back),
        input_grad_ns=with_moved(by.input_grad, times.input_grad_ns, back),
        weight_grad_ns=change(by.weight_grad, times.weight_grad_ns),
        recompute_ns=with_moved(by.forward, times.recompute_ns, ahead) if times.recompute_ns else 0,
        sync_ns=change(by.sum, times.sync_ns) if times.sync_ns else 0,
        step_ns=change(by.update, times.step_ns),
        forward_conversions_ns=moved(ahead),
        backward_conversions_ns=moved(back),
    )


def _hop(plan: Plan, hop: Hop, by: Corrections, change: _Change) -> Hop:
    """Returns the hop with its time changed; between stages of one worker nothing travels."""
    apart = any(row[hop.sender] != row[hop.receiver] for row in plan.schedule.place)
    return hop.model_copy(update={"ns": change(by.hop, hop.ns)}) if apart and hop.bytes else hop


def surplus(runs: Sequence[tuple[Plan, Timeline]]) -> MemoryCorrection | None:
    """Returns what devices hold beyond their plans, from the fullest rank of each run that measured its memory.

    Args: `runs` are plans with the timelines of their runs.
    Returns: a correction whose spread no run exceeded, or None where no run measured its memory.
    """
    samples = [sample for plan, timeline in runs if (sample := _fullest(plan, timeline)) is not None]
    if not samples:
        return None
    start, factor = line_through(samples, proportional=True)
    most = max(sample.measured / (start + factor * sample.planned) for sample in samples)
    return MemoryCorrection(
        start_bytes=round(start),
        factor=float(f"{factor:.4g}"),
        spread=float(f"{max(0.0, most - 1):.3g}"),
        samples=len(samples),
    )


def _fullest(plan: Plan, timeline: Timeline) -> Sample | None:
    rows = []
    for rank, peak in timeline.peak_bytes.items():
        said = plan.prediction.memory[coordinates(plan.axes, rank).pipeline]
        rows.append(Sample(said.total - said.margin, peak))
    return max(rows, key=lambda row: row.measured, default=None)


def with_corrections(cluster: Cluster, fitted: Corrections) -> Cluster:
    """Returns the cluster with corrections, and with wider margins where devices held more than their plans said.

    Args: `fitted` replaces the corrections that the cluster had.
    """

    def wider(group: NodeGroup) -> NodeGroup:
        if fitted.memory is None:
            return group
        margin = group.capacity_bytes - fitted.memory.room_bytes(group.capacity_bytes)
        return group.model_copy(
            update={"margin_bytes": max(group.margin_bytes, min(margin, group.capacity_bytes - 1))}
        )

    nodes = tuple(map(wider, cluster.nodes))
    return with_node_groups(cluster.model_copy(update={"fitted": fitted}), nodes)
