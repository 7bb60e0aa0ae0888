"""Fronts and sweeps as tables, and as what `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from planner.explore import (
    EFFICIENT,
    HALF,
    MOST_MICROS,
    NEAR_BEST,
    Frontier,
    FrontierRow,
    Lemma,
    ScalingRow,
    Sweep,
)
from planner.plan import Plan, told_shared, told_sums
from planner.show.markup import block, paragraph, table
from planner.show.pictures import dots
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_percent, format_rate, plural

_HEADS = ("step", "samples/s", "fullest device", "devices", "gap", "best in time and", "plan")
_NO_FILES: Mapping[str, Path] = MappingProxyType({})


def of_frontier(front: Frontier, *, files: Mapping[str, Path] = _NO_FILES) -> str:
    """Writes a frontier as a table.

    Args: where plans have `files`, by the names of their rows, each row names its own.
    """
    rows = [
        (*_cells(row), *([files[name].name] if name in files else [])) for name, row in front.named().items()
    ]
    return f"{columns(rows, (*_HEADS, *(['file'] if files else [])))}\n\n{_whole(front)}"


def frontier_html(front: Frontier) -> str:
    """Draws a frontier for a notebook.

    Returns: HTML with a picture of each trade, and the table.
    """
    by_memory, by_devices = front.front("memory"), front.front("devices")
    drawn = []
    if len(by_memory) > 1:
        points = [(float(row.peak_bytes), float(row.step_ns), _told(row)) for row in by_memory]
        drawn.append(dots(points, format_bytes, "peak of the fullest device"))
    if len(by_devices) > 1:
        points = [(float(row.devices), float(row.step_ns), _told(row)) for row in by_devices]
        drawn.append(dots(points, lambda n: f"{n:,.0f}", "devices"))
    return block(paragraph(_whole(front)), *drawn, table(_HEADS, map(_cells, front.rows)))


def _cells(row: FrontierRow) -> tuple[object, ...]:
    return (
        format_duration(row.step_ns),
        f"{row.samples_per_s:.4g}",
        format_bytes(row.peak_bytes),
        row.devices,
        f"{100 * row.gap:.2f} %",
        " and ".join(row.best_in),
        shape(row.plan),
    )


def _told(row: FrontierRow) -> str:
    return f"{row.plan.schedule.family}, {row.devices} devices, {format_bytes(row.peak_bytes)}: {format_duration(row.step_ns)}"


def _whole(front: Frontier) -> str:
    """Returns how many plans there are, and which trades are complete."""
    names = {"memory": "time against memory", "devices": "time against devices"}
    whole = [names[trade] for trade in ("memory", "devices") if trade in front.whole]
    to = f" to {100 * front.resolution:g} %" if front.resolution else ""
    if len(whole) == 2:
        said = f"Both frontiers are complete{to}: {' and '.join(whole)}."
    elif whole:
        said = f"The frontier of {whole[0]} is complete{to}; in the other, plans between two rows may exist."
    else:
        said = "Neither frontier is complete: plans between two rows may exist."
    return f"{plural(len(front.rows), 'Pareto-optimal plan')}. {said} Each gap is of that row's own question."


def shape(plan: Plan) -> str:
    axes, schedule = plan.axes, plan.schedule
    parts = [f"{schedule.family}", f"data {axes.data} x pipeline {axes.pipeline}"]
    parts[1] += f" x spatial {axes.spatial}" if axes.spatial > 1 else ""
    parts.append(f"micro-batch {plan.batch.micro} x {plan.batch.micros}")
    parts += [f"pairs {schedule.pairs}"] if schedule.pairs > 1 else []
    parts += [f"chunks {schedule.chunks}"] if schedule.chunks > 1 else []
    parts += ["recompute"] if any(stage.recompute for stage in plan.stages) else []
    parts += ["sharded optimizer"] if plan.shard_optimizer else []
    parts += [told] if (told := told_shared(plan)) else []
    parts += [f"sums {told}"] if (told := told_sums(plan)) else []
    return ", ".join(parts)


def of_sweep(sweep: Sweep) -> str:
    head = sweep.over
    rows = [_swept(sweep, row) for row in sweep.rows]
    heads = (
        head,
        "used",
        "step",
        "samples/s",
        "device-hours a million samples",
        "fullest device",
        "gap",
        "plan",
    )
    text = columns(rows, heads)
    if sweep.knee is None:
        return f"{text}\n\nNothing fits."
    return f"{text}\n\n{_knee(sweep)}" + (f"\n{_lemma(sweep.lemma)}" if sweep.lemma else "")


def _swept(sweep: Sweep, row: ScalingRow) -> tuple[object, ...]:
    plan = row.plan
    if plan is None:
        return (row.asked, "", "nothing fits", "", "", "", "", "")
    gap = plan.certificate.gap if plan.certificate else 0.0
    mark = "  <- knee" if row.asked == sweep.knee else ""
    return (
        row.asked,
        row.devices,
        format_duration(plan.prediction.step_ns),
        f"{row.samples_per_s:.4g}",
        f"{row.device_hours:.4g}",
        format_bytes(row.peak_bytes),
        f"{100 * gap:.2f} %",
        shape(plan) + mark,
    )


def _knee(sweep: Sweep) -> str:
    if sweep.over == "devices":
        return f"Knee: {sweep.knee} devices; up to there every device added brings at least {HALF:.0%} of its share."
    if sweep.over == "kept":
        return _kept_knee(sweep)
    last = sweep.rows[-1]
    more = ""
    if last.micros >= MOST_MICROS and sweep.knee == last.asked:
        more = f" A step of it has {last.micros} micro-batches; `--batch` takes larger ones."
    return (
        f"Knee: {sweep.knee} samples a step, the least batch that reaches {NEAR_BEST:.0%} of the highest rate. How "
        f"many samples training needs at a batch size (its statistical efficiency) is not known here: that is yours "
        f"to judge.{more}"
    )


def _kept_knee(sweep: Sweep) -> str:
    most = f"{NEAR_BEST:.0%} of the highest rate"
    if sweep.knee == 1:
        return f"Knee: nothing is pruned. Training with every entry reaches {most}, so pruning gains no time here."
    return (
        f"Knee: {sweep.knee:g} of the entries of pruned weights, the largest share kept that reaches {most}. How "
        "accurate a network with so few weights is, is yours to judge."
    )


def _lemma(lemma: Lemma) -> str:
    if not lemma.ratio:
        return f"On {lemma.devices} devices nothing but computing takes time."
    return (
        f"More devices: if what is not computing stays as it is on {lemma.devices} devices "
        f"({format_percent(lemma.ratio)} of all computing on one), no number of them is more than "
        f"{format_rate(lemma.limit)} times as fast as one, and {EFFICIENT:.0%} of each device's speed is kept up to "
        f"{lemma.efficient_devices():,.0f} devices."
    )


def frontier_data(front: Frontier, *, files: Mapping[str, Path]) -> dict[str, object]:
    rows = [
        {
            "plan": str(files[name]),
            "step_ns": row.step_ns,
            "samples_per_s": row.samples_per_s,
            "peak_bytes": row.peak_bytes,
            "devices": row.devices,
            "gap": row.gap,
            "best_in": list(row.best_in),
        }
        for name, row in front.named().items()
    ]
    return {"rows": rows, "whole": list(front.whole), "resolution": front.resolution}


def sweep_data(sweep: Sweep, *, files: Mapping[float, Path]) -> dict[str, object]:
    rows = [
        {
            sweep.over: row.asked,
            "plan": str(files[row.asked]) if row.asked in files else None,
            "devices_used": row.devices,
            "step_ns": row.plan.prediction.step_ns if row.plan else None,
            "samples_per_s": row.samples_per_s,
            "device_hours_a_million_samples": row.device_hours,
            "peak_bytes": row.peak_bytes,
            "gap": row.plan.certificate.gap if row.plan and row.plan.certificate else None,
        }
        for row in sweep.rows
    ]
    lemma = sweep.lemma
    limits = (
        {"ratio": lemma.ratio, "limit": lemma.limit if lemma.ratio else None, "devices": lemma.devices}
        if lemma
        else None
    )
    return {"over": sweep.over, "rows": rows, "knee": sweep.knee, "overhead": limits}
