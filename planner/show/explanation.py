"""The explanation of a plan as text and as data, and plans side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from planner.errors import BadInput
from planner.explore import Explanation, MoreMemory, PlanParts, PrunedState, StageSums
from planner.plan import Plan, distinct_replicas, reading_ns, times_of, world_size
from planner.show import figures
from planner.show.markup import block, paragraph, table
from planner.show.rivals import configuration_text, reading_text, rivals_text
from planner.shown import Shown
from planner.simulate import period_of_replica, simulate_plan
from planner.terminal import columns
from planner.units import format_bytes, format_duration, format_percent, format_rate, numbered, plural

_SEEN = 0.0005  # share of a step below which a part is not told


def explanation_text(found: Explanation) -> str:
    """Writes what `--explain` prints.

    Returns: the table of rivals, and sentences on the step, the errors of the costs, memory and overhead.
    """
    table = rivals_text(found.plan)
    parts = [
        f"{table}\n" if table else "",
        _made_of(found.chosen),
        _waits(found.plan),
        reading_text(found.plan),
        _sums(found.sums),
        _hidden(found),
        _errors(found),
        _memory(found),
        _overhead(found),
        _pruned(found.pruned, found.plan),
    ]
    return "\n".join(part for part in parts if part)


def _made_of(chosen: PlanParts) -> str:
    shares = {name: ns / max(chosen.step_ns, 1) for name, ns in chosen.parts_ns.items()}
    told = [f"{name} {format_percent(share)}" for name, share in shares.items() if share >= _SEEN]
    return f"Of its step: {', '.join(told)}."


def _waits(plan: Plan) -> str:
    """Returns which replicas wait for which, where their shares or their devices differ."""
    alike = distinct_replicas(plan)
    if len(alike) < 2:
        return ""
    kinds = {(plan.batch.share(r), times_of(plan, r)): r for r in alike}
    members: dict[int, list[int]] = {r: [] for r in alike}
    for r in range(plan.axes.data):
        members[kinds[plan.batch.share(r), times_of(plan, r)]].append(r)
    took = sorted(((period_of_replica(plan, r), r) for r in alike), reverse=True)
    told = [
        f"{numbered('replica', members[r])} ({plural(plan.batch.share(r), 'micro-batch', 'micro-batches')}) "
        f"{'would take' if i else 'take'} {format_duration(ns)}"
        for i, (ns, r) in enumerate(took)
    ]
    return f"Who waits for whom: {'; '.join(told)} alone, and the rest of a step they wait."


def _sums(found: StageSums | None) -> str:
    if found is None:
        return ""
    others = [
        f"{name} would take {format_duration(ns)}" for name, ns in found.ns.items() if name != found.name
    ]
    of = f"Gradients of stage {found.stage}, {format_bytes(found.bytes)}, are summed over {plural(found.ranks, 'rank')}"
    rest = f"; {', '.join(others)}" if others else ""
    return f"{of} by {found.name} in {format_duration(found.ns[found.name])}{rest}."


def _hidden(found: Explanation) -> str:
    if found.in_one is None:
        return ""
    choice, step_ns = found.plan.schedule, found.plan.prediction.step_ns
    saved = found.in_one.step_ns - step_ns
    if saved < _SEEN * step_ns:
        return ""
    late = choice.settings.get("late", 0)
    at_use = ", updates when the next step needs them" if choice.settings.get("updates") == "at_use" else ""
    order = ", sums by priority" if choice.settings.get("sums") else ""
    last = f", weight gradients of {late} parts last" if late else ""
    return (
        f"Out-of-order backprop saves {format_duration(saved)} of {format_duration(found.in_one.step_ns)} "
        f"({format_percent(saved / max(found.in_one.step_ns, 1))}): gradients summed in {choice.chunks} parts{order}{at_use}{last}."
    )


def _errors(found: Explanation) -> str:
    if not found.error:
        return "The costs carry no spread, so what their error would change is not known."
    return (
        f"Measured costs vary by ±{format_percent(found.error)}. If every cost is right to within that, no plan in the search "
        f"space is more than {format_percent(found.within)} faster."
    )


def _memory(found: Explanation) -> str:
    room, step_ns = found.room, found.plan.prediction.step_ns
    if room is None:
        return "More memory: not looked into, since the search was stopped."
    more = f"More memory: {format_bytes(room.more_bytes)} more on each device would"
    if room.step_ns < step_ns:
        saved = step_ns - room.step_ns
        which = configuration_text(room.configuration)
        return f"{more} save {format_duration(saved)} a step ({format_percent(saved / step_ns)}): {which}."
    return f"{more} change nothing ({format_bytes(room.free_bytes)} are free on the fullest)."


def _pruned(found: PrunedState | None, plan: Plan) -> str:
    if found is None:
        return ""
    said = f"Pruned, the state takes {found.bytes_each:.1f} instead of {found.dense_bytes_each:.1f} bytes a parameter"
    if found.dense is None:
        return f"{said}; unpruned, nothing fits."
    stages, replicas = len(found.dense.stages) - len(plan.stages), plan.axes.data - found.dense.axes.data
    more = f", {plural(stages, 'stage')} less" if stages > 0 else ""
    more += f", {plural(replicas, 'replica')} more" if replicas > 0 else ""
    return f"{said}{more}; unpruned, a step takes {format_duration(found.dense.prediction.step_ns)}."


def _overhead(found: Explanation) -> str:
    lemma = found.overhead
    if lemma is None or lemma.ratio < _SEEN:
        return ""
    return (
        f"More devices: if what is not computing stays as it is ({format_percent(lemma.ratio)} of all computing on one "
        f"device), no number of them is more than {format_rate(lemma.limit)} times as fast as one."
    )


def _room_dict(room: MoreMemory) -> dict[str, object]:
    return {
        "more_bytes": room.more_bytes,
        "step_ns": room.step_ns,
        "plan": configuration_text(room.configuration),
        "free_bytes": room.free_bytes,
    }


def explanation_dict(found: Explanation) -> dict[str, object]:
    """Returns an explanation as `--json` prints it.

    Returns: steps and parts in nanoseconds, errors as shares, memory in bytes.
    """

    def told(part: PlanParts) -> dict[str, object]:
        return {
            "name": configuration_text(part.configuration),
            "configuration": part.configuration.model_dump(mode="json", exclude_defaults=True),
            "step_ns": part.step_ns,
            "parts_ns": dict(part.parts_ns),
        }

    return {
        "chosen": told(found.chosen),
        "runners_up": [told(part) for part in found.runners_up],
        "within_error": [told(part) for part in found.within_error],
        "error": found.error,
        "within": found.within,
        "more_memory": None if found.room is None else _room_dict(found.room),
        "in_one_sum_ns": found.in_one.step_ns if found.in_one else None,
        "overhead": found.overhead.ratio if found.overhead else None,
    } | _told_of(found)


def _told_of(found: Explanation) -> dict[str, object]:
    """Returns what is only told where it was measured."""
    told: dict[str, object] = {"reading_ns": reading_ns(found.plan)} if found.plan.data else {}
    return told | ({"sums": asdict(found.sums)} if found.sums else {})


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
        """Returns a sentence for each plan after the first, on how it differs from the first."""
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
