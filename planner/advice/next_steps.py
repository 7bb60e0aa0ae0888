"""What to try next, each only where the plan, its proof or its run gives the reason."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import join

from planner.advice.commands import Sources
from planner.plan import Plan
from planner.show import rival_rows
from planner.simulate import RunRecord
from planner.units import format_bytes, format_duration, format_percent

_GAP = 0.005  # below, another search is not worth its time
_IDLE = 0.10
_FULL, _EMPTY = 0.92, 0.5
_OFF = 0.15
_NEAR = 0.03

Told = Iterator[tuple[str, str]]


def advice(plan: Plan, sources: Sources, *, run: RunRecord | None, idle: float, fullest: int) -> Told:
    """Yields what to try and why, each with a command or call.

    Args: `sources` are the files that are known; `idle` is the workers' share of idle time, `fullest` the worker whose
      memory is nearest to its limit.
    Returns: pairs of words; the second is empty where there is no command.
    """
    yield from _proof(plan, sources)
    yield from _costs(plan, sources)
    yield from _pipeline(plan, sources, idle)
    yield from _memory(plan, sources, fullest)
    yield from _simpler(plan)
    yield from _unmeasured(sources) if run is None else _run(plan, sources, run)


def _proof(plan: Plan, sources: Sources) -> Told:
    proof = plan.certificate
    if proof is None:
        yield (
            "This plan has no certificate: it was written by hand or edited. Ask the solver for one that has.",
            sources.again(plan),
        )
    elif proof.gap > _GAP:
        pinned = (f"--schedule={plan.schedule.family}", f"--fix=pipeline={plan.axes.pipeline}")
        yield (
            f"The search ended with a gap of {proof.gap:.2%}: a plan that much faster may exist. Fewer families or a "
            "pinned decision let it close.",
            sources.again(plan, *pinned),
        )


def _costs(plan: Plan, sources: Sources) -> Told:
    if "roofline" in plan.provenance.profile:
        measured = sources.measure(
            plan, "--device=cuda", f"--micro={plan.batch.micro}", output="measured.yaml"
        )
        yield (
            "The costs are a roofline: operations and bytes at the device's peak, which real kernels do not reach. "
            "Measure one device of the cluster before you believe a time, and plan again.",
            f"{measured} && {sources.again(plan, profile='measured.yaml')}",
        )


def _pipeline(plan: Plan, sources: Sources, idle: float) -> Told:
    if plan.axes.pipeline > 1 and idle > _IDLE:
        yield (
            f"Workers idle for {idle:.0%} of the step. More micro-batches fill a pipeline: a larger batch, "
            f"or micro-batches smaller than {plan.batch.micro}, if they were profiled.",
            sources.again(plan, batch=2 * plan.batch.samples),
        )


def _memory(plan: Plan, sources: Sources, at: int) -> Told:
    if not plan.prediction.memory:
        return
    fullest = plan.prediction.memory[at]
    share = fullest.total / max(1, fullest.limit)
    room = f"{format_bytes(fullest.total)} of {format_bytes(fullest.limit)}"
    if share > _FULL:
        yield (
            f"Worker {at} is nearly full: {room}. Keep a margin for fragments (margin_bytes of the cluster file), "
            "or measure the peak before a long run.",
            join(["shardwright", "rehearse", str(sources.plan)]),
        )
    elif share < _EMPTY:
        micros = f"--micro={plan.batch.micro},{2 * plan.batch.micro}"
        yield (
            f"No device holds more than {room}. Larger micro-batches may be faster: profile them, and plan again.",
            f"{sources.measure(plan, micros, output='larger.yaml')} && {sources.again(plan, profile='larger.yaml')}",
        )
    recomputed = sum(stage.recompute for stage in plan.stages)
    if recomputed:
        yield (
            f"{recomputed} of {len(plan.stages)} stages recompute their forward. What would more memory be worth?",
            sources.again(plan, "--explain"),
        )


def _simpler(plan: Plan) -> Told:
    own = plan.prediction.step_ns
    for row in rival_rows(plan):
        if row.step_ns is not None and own < row.step_ns <= own * (1 + _NEAR):
            which = ", ".join(part for part in (row.name, row.configuration) if part)
            yield (
                f"Hardly slower ({format_percent(row.step_ns / own - 1)}), and perhaps simpler to run: {which}.",
                "",
            )
            return


def _unmeasured(sources: Sources) -> Told:
    plan, run = str(sources.plan), f"runs/{sources.plan.stem}-try"
    launched = join(["shardwright", "launch", plan, "--steps", "20", "--wait", "--run", run])
    report = join(["shardwright", "report", plan, run, "-o", f"{sources.plan.stem}-try.html"])
    yield (
        "Nothing has been measured under this plan yet. A short run, laid beside this prediction, shows what the "
        "costs missed.",
        f"{launched} && {report}",
    )


def _run(plan: Plan, sources: Sources, run: RunRecord) -> Told:
    compared = run.comparison
    if abs(compared.ratio - 1) <= _OFF:
        return
    worst = max(compared.events, key=lambda e: abs((e.measured_ns - e.predicted_ns) * e.times), default=None)
    where = "" if worst is None else (
        f" Most of it in {worst.stage}{worst.name}: {format_duration(worst.measured_ns)} each instead of {format_duration(worst.predicted_ns)}."
    )  # fmt: skip
    yield (
        f"The step took {compared.ratio:.2f} times what was predicted.{where} Plan again with what this run took, or "
        "profile on the machine that ran it, idle.",
        sources.again(plan, f"--replan-from={sources.run or run.folder}"),
    )
