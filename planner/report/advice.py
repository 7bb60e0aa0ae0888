"""Advice on what to try next, each only where the plan, its proof or its run gives the reason."""

from __future__ import annotations

from collections.abc import Iterator

from planner.report.contents import Contents
from planner.show import rival_rows
from planner.units import format_bytes, format_duration, format_percent

_GAP = 0.005  # below, another search is not worth its time
_IDLE = 0.10
_FULL, _EMPTY = 0.92, 0.5
_OFF = 0.15
_NEAR = 0.03


def advice(found: Contents) -> Iterator[tuple[str, str]]:
    """Yields what to try and why, each with a command or call.

    Returns: pairs of words; the second is empty where there is no command.
    """
    yield from _proof(found)
    yield from _costs(found)
    yield from _pipeline(found)
    yield from _memory(found)
    yield from _simpler(found)
    yield from _run(found)


def _proof(found: Contents) -> Iterator[tuple[str, str]]:
    proof, name = found.plan.certificate, found.plan.model.workload
    if proof is None:
        yield (
            "This plan has no certificate: it was written by hand or edited. Ask the solver for one that has.",
            f"shardwright plan {name} --cluster CLUSTER.yaml --batch {found.plan.batch.samples}",
        )
    elif proof.gap > _GAP:
        yield (
            f"The search ended with a gap of {proof.gap:.2%}: a plan that much faster may exist. Fewer families or a "
            "pinned decision let it close.",
            f"shardwright plan {name} ... --schedule {found.plan.schedule.family} --fix pipeline={found.plan.axes.pipeline}",
        )


def _costs(found: Contents) -> Iterator[tuple[str, str]]:
    if "roofline" in found.plan.provenance.profile:
        yield (
            "The costs are a roofline: operations and bytes at the device's peak, which real kernels do not reach. "
            "Measure one device of the cluster before you believe a time.",
            f"shardwright profile {found.plan.model.workload} --device cuda -o profile.yaml",
        )


def _pipeline(found: Contents) -> Iterator[tuple[str, str]]:
    plan = found.plan
    if plan.axes.pipeline > 1 and found.idle_share > _IDLE:
        yield (
            f"Workers idle for {found.idle_share:.0%} of the step. More micro-batches fill a pipeline: a larger batch, "
            f"or micro-batches smaller than {plan.batch.micro}, if they were profiled.",
            f"shardwright plan ... --batch {2 * plan.batch.samples}",
        )


def _memory(found: Contents) -> Iterator[tuple[str, str]]:
    if not found.plan.prediction.memory:
        return
    fullest = found.plan.prediction.memory[found.fullest]
    share = fullest.total / max(1, fullest.limit)
    room = f"{format_bytes(fullest.total)} of {format_bytes(fullest.limit)}"
    if share > _FULL:
        yield (
            f"Worker {found.fullest} is nearly full: {room}. Keep a margin for fragments (margin_bytes of the cluster file), "
            "or measure the peak before a long run.",
            "",
        )
    elif share < _EMPTY:
        yield (
            f"No device holds more than {room}. Larger micro-batches may be faster: profile them, and plan again.",
            f"shardwright profile {found.plan.model.workload} --micro {found.plan.batch.micro},{2 * found.plan.batch.micro}",
        )
    recomputed = sum(stage.recompute for stage in found.plan.stages)
    if recomputed:
        yield (
            f"{recomputed} of {len(found.plan.stages)} stages recompute their forward. What would more memory be worth?",
            f"plan.what_if(memory_gib={-(-2 * fullest.limit // 2**30)})",
        )


def _simpler(found: Contents) -> Iterator[tuple[str, str]]:
    own = found.plan.prediction.step_ns
    for row in rival_rows(found.plan):
        if row.step_ns is not None and own < row.step_ns <= own * (1 + _NEAR):
            which = ", ".join(part for part in (row.name, row.configuration) if part)
            yield (
                f"Hardly slower ({format_percent(row.step_ns / own - 1)}), and perhaps simpler to run: {which}.",
                "",
            )
            return


def _run(found: Contents) -> Iterator[tuple[str, str]]:
    if found.run is None:
        yield (
            "Nothing has been measured under this plan yet. A short run, laid beside this prediction, shows what the "
            "costs missed.",
            "shardwright launch plan.yaml --steps 20 --wait --run runs/try && shardwright report plan.yaml runs/try",
        )
        return
    compared = found.run.comparison
    if abs(compared.ratio - 1) <= _OFF:
        return
    worst = max(compared.events, key=lambda e: abs((e.measured_ns - e.predicted_ns) * e.times), default=None)
    where = "" if worst is None else (
        f" Most of it in {worst.stage}{worst.name}: {format_duration(worst.measured_ns)} each instead of {format_duration(worst.predicted_ns)}."
    )  # fmt: skip
    yield (
        f"The step took {compared.ratio:.2f} times what was predicted.{where} Profile on the machine that ran it, idle.",
        f"shardwright profile {found.plan.model.workload} -o profile.yaml",
    )
