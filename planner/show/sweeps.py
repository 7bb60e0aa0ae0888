"""Fronts and sweeps as tables, and as what `--json` prints."""

from __future__ import annotations

from pathlib import Path

from planner.explore import EFFICIENT, HALF, MOST_MICROS, NEAR_BEST, Frontier, Lemma, ScalingRow, Sweep
from planner.explore import FrontierRow as FrontRow
from planner.plan import Plan
from planner.terminal import columns
from planner.units import format_bytes, format_duration


def of_frontier(front: Frontier, files: dict[str, Path]) -> str:
    rows = [
        (
            format_duration(row.step_ns),
            f"{row.samples_per_s:.4g}",
            format_bytes(row.peak_bytes),
            row.devices,
            f"{row.gap:.2%}",
            " and ".join(row.best_in),
            shape(row.plan),
            files[name].name if name in files else "",
        )
        for name, row in named(front).items()
    ]
    heads = ("step", "samples/s", "fullest device", "devices", "gap", "best in time and", "plan", "file")
    return f"{columns(rows, heads)}\n\n{_whole(front)}"


def _whole(front: Frontier) -> str:
    lines = []
    if "devices" in front.whole:
        lines.append("Time against devices: no plan is left out.")
    if "memory" in front.whole:
        apart = f" whose use differs by {front.resolution:.0%} or more" if front.resolution else ""
        lines.append(f"Time against memory: no plan is left out{apart}.")
    if len(lines) < 2:
        lines.append(
            "What is not named as whole has stretches that were not asked: plans between two rows may exist."
        )
    return " ".join(lines) + " Each gap is of that row's own question."


def named(front: Frontier) -> dict[str, FrontRow]:
    """Rows by the names that their files have."""
    width = max(2, len(str(len(front.rows))))
    return {f"{index:0{width}d}": row for index, row in enumerate(front.rows, start=1)}


def shape(plan: Plan) -> str:
    axes, schedule = plan.axes, plan.schedule
    parts = [f"{schedule.family}", f"data {axes.data} x pipeline {axes.pipeline}"]
    parts[1] += f" x spatial {axes.spatial}" if axes.spatial > 1 else ""
    parts.append(f"micro-batch {plan.batch.micro} x {plan.batch.micros}")
    parts += [f"pairs {schedule.pairs}"] if schedule.pairs > 1 else []
    parts += [f"chunks {schedule.chunks}"] if schedule.chunks > 1 else []
    parts += ["recompute"] if any(stage.recompute for stage in plan.stages) else []
    parts += ["sharded optimizer"] if plan.shard_optimizer else []
    return ", ".join(parts)


def of_sweep(sweep: Sweep) -> str:
    head = "devices" if sweep.over == "devices" else "batch"
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
        f"{gap:.2%}",
        shape(plan) + mark,
    )


def _knee(sweep: Sweep) -> str:
    if sweep.over == "devices":
        return f"Knee: {sweep.knee} devices; up to there every device added brings at least {HALF:.0%} of its share."
    last = sweep.rows[-1]
    more = ""
    if last.micros >= MOST_MICROS and sweep.knee == last.asked:
        more = f" A step of it has {last.micros} micro-batches; `--batch` takes larger ones."
    return (
        f"Knee: {sweep.knee} samples a step, the least batch that reaches {NEAR_BEST:.0%} of the highest rate. How "
        f"many samples training needs at a batch size (its statistical efficiency) is not known here: that is yours "
        f"to judge.{more}"
    )


def _lemma(lemma: Lemma) -> str:
    if not lemma.ratio:
        return f"On {lemma.devices} devices nothing but computing takes time."
    return (
        f"Overhead: on {lemma.devices} devices, what is not computing takes {lemma.ratio:.3g} of what all computing "
        f"would take on one. If it stays so, no number of devices is more than {lemma.limit:.4g} times as fast as one, "
        f"and {EFFICIENT:.0%} of each device's speed is kept up to {lemma.efficient_devices():.0f} devices."
    )


def frontier_data(front: Frontier, files: dict[str, Path]) -> dict[str, object]:
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
        for name, row in named(front).items()
    ]
    return {"rows": rows, "whole": list(front.whole), "resolution": front.resolution}


def sweep_data(sweep: Sweep, files: dict[int, Path]) -> dict[str, object]:
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
