"""The explanation of a plan as text and as data."""

from __future__ import annotations

from planner.explore import Explanation, PlanParts
from planner.plan import Plan, distinct_replicas, times_of
from planner.show.rivals import configuration_text, rivals_text
from planner.simulate import period_of_replica
from planner.units import format_bytes, format_duration, format_percent, numbered, plural

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
        _hidden(found),
        _errors(found),
        _memory(found),
        _overhead(found),
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
    more = f"More memory: {format_bytes(room.more_bytes)} more on each device would"
    if room.step_ns < step_ns:
        saved = step_ns - room.step_ns
        which = configuration_text(room.configuration)
        return f"{more} save {format_duration(saved)} a step ({format_percent(saved / step_ns)}): {which}."
    return f"{more} change nothing ({format_bytes(room.free_bytes)} are free on the fullest)."


def _overhead(found: Explanation) -> str:
    lemma = found.overhead
    if lemma is None or lemma.ratio < _SEEN:
        return ""
    return (
        f"Communication and idle time are {format_percent(lemma.ratio)} of the computation. If that share stays, more devices "
        f"cannot be more than {lemma.limit:.4g} times as fast as one."
    )


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
        "more_memory": {
            "more_bytes": found.room.more_bytes,
            "step_ns": found.room.step_ns,
            "plan": configuration_text(found.room.configuration),
            "free_bytes": found.room.free_bytes,
        },
        "in_one_sum_ns": found.in_one.step_ns if found.in_one else None,
        "overhead": found.overhead.ratio if found.overhead else None,
    }
