"""Plans side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.errors import BadInput
from planner.plan import Plan, world_size
from planner.show import figures
from planner.show.markup import block, paragraph, table
from planner.shown import Shown
from planner.simulate import simulate_plan
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class SideBySide(Shown):
    """The first is what the others are held against."""

    plans: tuple[Plan, ...]

    def to_rows(self) -> list[dict[str, object]]:
        """Returns a row for each plan, as data."""
        return [_facts(plan) for plan in self.plans]

    def to_dict(self) -> dict[str, object]:
        return {"plans": self.to_rows()}

    def summary(self) -> str:
        return " ".join(against(self.plans[0], other) for other in self.plans[1:])

    def heads(self) -> tuple[str, ...]:
        return ("", *(_short(plan) for plan in self.plans))

    def lines(self) -> Iterator[tuple[str, ...]]:
        rows = self.to_rows()
        for name in rows[0]:
            yield (_WORDS.get(name, name), *(_cell(name, row[name]) for row in rows))


def versus_text(found: SideBySide) -> str:
    return f"{found.summary()}\n\n{columns(list(found.lines()), found.heads())}"


def versus_html(found: SideBySide) -> str:
    return block(paragraph(found.summary()), table(found.heads(), found.lines()))


def versus_figure(found: SideBySide) -> Figure:
    timelines = [simulate_plan(plan) for plan in found.plans]
    return figures.of_several(timelines, [_short(plan) for plan in found.plans])


def compare(*plans: Plan) -> SideBySide:
    if len(plans) < 2:
        raise BadInput(f"{len(plans)} plans", where="compare", allowed="2 or more")
    return SideBySide(plans)


def against(before: Plan, after: Plan) -> str:
    """Writes one sentence on what has changed, for the better or worse.

    Returns: the steps of both plans, and the ratio of their times a sample.
    """
    old, new = before.prediction.step_ns, after.prediction.step_ns
    ratio = (new / max(1, after.batch.samples)) / max(1e-9, old / max(1, before.batch.samples))
    word = "the same time a sample" if abs(ratio - 1) < 5e-4 else f"{ratio:.3f} times the time a sample"
    return f"{_short(after)} instead of {_short(before)}: {format_duration(new)} a step instead of {format_duration(old)}, {word}."


def _short(plan: Plan) -> str:
    axes = plan.axes
    degrees = " x ".join(f"{name} {getattr(axes, name)}" for name in axes.order if getattr(axes, name) > 1)
    pairs = f" ({plan.schedule.pairs} pairs)" if plan.schedule.pairs > 1 else ""
    return f"{plan.schedule.family}{pairs}, {degrees or 'one process'}"


def _facts(plan: Plan) -> dict[str, object]:
    fullest = max((m for m in plan.prediction.memory), key=lambda m: m.total / max(1, m.limit), default=None)
    proof = plan.certificate
    return {
        "step_ns": plan.prediction.step_ns,
        "samples_per_s": plan.batch.samples / max(1e-9, plan.prediction.step_ns / 1e9),
        "devices": world_size(plan.axes),
        "data": plan.axes.data,
        "pipeline": plan.axes.pipeline,
        "spatial": plan.axes.spatial,
        "schedule": plan.schedule.family,
        "pairs": plan.schedule.pairs,
        "stages": len(plan.stages),
        "micro": plan.batch.micro,
        "micros": plan.batch.micros,
        "recomputed": sum(stage.recompute for stage in plan.stages),
        "shard_optimizer": plan.shard_optimizer,
        "peak_bytes": fullest.total if fullest else 0,
        "limit_bytes": fullest.limit if fullest else 0,
        "gap": proof.gap if proof else None,
    }


_WORDS = {
    "step_ns": "step",
    "samples_per_s": "samples/s",
    "micro": "micro-batch",
    "micros": "micro-batches",
    "recomputed": "stages recomputed",
    "shard_optimizer": "optimizer sharded",
    "peak_bytes": "fullest device",
    "limit_bytes": "its limit",
}


def _cell(name: str, value: object) -> str:
    match value:
        case None:
            return "no certificate"
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_ns"):
            return format_duration(value)
        case int() if name.endswith("_bytes"):
            return format_bytes(value)
        case float():
            return f"{value:.2%}" if name == "gap" else format_rate(value)
        case _:
            return str(value)
