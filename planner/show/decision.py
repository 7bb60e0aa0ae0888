"""What a plan takes and what it is, each in one line."""

from __future__ import annotations

from planner.plan import Plan, world_size
from planner.schedule import FAMILIES
from planner.show.words import named_model, plural
from planner.units import format_duration, format_rate


def first_line(plan: Plan) -> str:
    """Returns the model, its step with the error bar, and the rate of samples."""
    step = plan.prediction
    rate = format_rate(plan.batch.samples / max(step.step_ns / 1e9, 1e-9))
    devices = plural(world_size(plan.axes), "device")
    took = f"{format_duration(step.step_ns)} a step ({error_bar(plan)})"
    return f"{named_model(plan)}: {took}, {rate} samples/s on {devices}"


def error_bar(plan: Plan) -> str:
    """Returns both ends of the error bar; a unit that all share with the step is not repeated."""
    step = plan.prediction
    if step.low_ns == step.high_ns:
        return "no error bar: its costs carry no spread"
    low, high = format_duration(step.low_ns), format_duration(step.high_ns)
    unit = format_duration(step.step_ns).rpartition(" ")[2]
    if {low.rpartition(" ")[2], high.rpartition(" ")[2]} == {unit}:
        low, high = low.rpartition(" ")[0], high.rpartition(" ")[0]
    return f"{low} to {high}"


def how(plan: Plan) -> str:
    """Returns what a plan is, in one line: its degrees, its schedule, its micro-batches, and what it does for memory."""
    axes, schedule, batch = plan.axes, plan.schedule, plan.batch
    parts = [f"{axes.data} replicas" if axes.data > 1 else ""]
    parts.append(_pipeline(plan))
    grid = next((stage.spatial for stage in plan.stages if stage.spatial), ())
    parts.append(f"each sample in {'x'.join(map(str, grid))} shards" if axes.spatial > 1 else "")
    parts.append(f"{plural(batch.micros, 'micro-batch', 'micro-batches')} of {batch.micro}")
    recomputed = sum(stage.recompute for stage in plan.stages)
    extra = []
    if schedule.chunks > 1 and axes.pipeline == 1 and axes.data * axes.spatial > 1:
        extra.append("gradients are summed while the backward pass runs")
    if recomputed:
        extra.append(f"{recomputed} of {plural(len(plan.stages), 'stage')} recompute")
    if plan.shard_optimizer:
        extra.append("optimizer state is sharded")
    if schedule.update == "rolling":
        extra.append("updates overlap with the next step")
    return "; ".join([", ".join(part for part in parts if part), *extra])


def _pipeline(plan: Plan) -> str:
    schedule, workers = plan.schedule, plan.axes.pipeline
    if workers == 1:
        return "no pipeline"
    parts = [schedule.family if schedule.family != "listed" else "order rescheduled for these costs"]
    parts += [plural(schedule.pairs, "pair")] if paired(schedule.family) else []
    parts += [f"{schedule.chunks} stages a worker"] if schedule.chunks > 1 else []
    return f"pipeline of {workers} workers ({', '.join(parts)})"


def paired(family: str) -> bool:
    """Returns whether a family has pipes in pairs, as Chimera has."""
    return family in FAMILIES and FAMILIES[family].paired
