"""The explanation of a plan as text and as data."""

from __future__ import annotations

from planner.explore import _SEEN, Explanation, PlanParts
from planner.terminal import columns
from planner.units import format_bytes, format_duration


def explanation_text(found: Explanation) -> str:
    parts = [
        _made_of(found.chosen),
        _hidden(found),
        _losses(found),
        _errors(found),
        _memory(found),
        _overhead(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _made_of(chosen: PlanParts) -> str:
    shares = {name: ns / max(chosen.step_ns, 1) for name, ns in chosen.parts_ns.items()}
    told = [f"{name} {share:.1%}" for name, share in shares.items() if share >= _SEEN]
    return f"Of its step: {', '.join(told)}."


def _hidden(found: Explanation) -> str:
    if found.in_one is None:
        return ""
    choice, step_ns = found.plan.schedule, found.plan.prediction.step_ns
    saved = found.in_one.step_ns - step_ns
    late = choice.settings.get("late", 0)
    at_use = ", updates when the next step needs them" if choice.settings.get("updates") == "at_use" else ""
    order = ", sums by priority" if choice.settings.get("sums") else ""
    last = f", weight gradients of {late} parts last" if late else ""
    return (
        f"Out-of-order backprop saves {format_duration(saved)} of {format_duration(found.in_one.step_ns)} "
        f"({saved / max(found.in_one.step_ns, 1):.1%}): gradients summed in {choice.chunks} parts{order}{at_use}{last}."
    )


def _losses(found: Explanation) -> str:
    """How much longer each part of a runner-up takes than that of the plan."""
    if not found.runners_up:
        return ""
    names = [name for name in found.chosen.parts_ns if any(p.parts_ns[name] for p in found.runners_up)]
    rows = [
        (
            each.name,
            format_duration(each.step_ns),
            *(_signed(each.parts_ns[name] - found.chosen.parts_ns[name]) for name in names),
        )
        for each in found.runners_up
    ]
    return columns(rows, ("runner-up", "step", *names))


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else ''}{format_duration(ns)}" if round(ns) else "0"


def _errors(found: Explanation) -> str:
    if not found.error:
        return "Its costs carry no spread: what their error would change is not known."
    head = (
        f"Its costs are known to {found.error:.1%}; if all are, no plan is faster by more than {found.within:.1%} "
        f"(and the gap of its proof)."
    )
    if not found.within_error:
        return f"{head} No other plan that was answered comes that near."
    rows = [(each.name, format_duration(each.step_ns)) for each in found.within_error]
    return f"{head}\n{columns(rows, ('too near to tell', 'step'))}"


def _memory(found: Explanation) -> str:
    room, step_ns = found.room, found.plan.prediction.step_ns
    more = f"{format_bytes(room.more_bytes)} more on each device"
    if room.step_ns < step_ns:
        saved = step_ns - room.step_ns
        return f"{more} would save {format_duration(saved)} a step ({saved / step_ns:.1%}): {room.says}."
    return f"{more} would change nothing; its fullest device has {format_bytes(room.free_bytes)} left."


def _overhead(found: Explanation) -> str:
    lemma = found.overhead
    if lemma is None or not lemma.ratio:
        return ""
    return (
        f"What is not computing takes {lemma.ratio:.3g} of all its computing on one device: if that stays, no number "
        f"of devices is more than {lemma.limit:.4g} times as fast as one."
    )


def explanation_dict(found: Explanation) -> dict[str, object]:
    def told(part: PlanParts) -> dict[str, object]:
        return {"name": part.name, "step_ns": part.step_ns, "parts_ns": dict(part.parts_ns)}

    return {
        "chosen": told(found.chosen),
        "runners_up": [told(part) for part in found.runners_up],
        "within_error": [told(part) for part in found.within_error],
        "error": found.error,
        "within": found.within,
        "more_memory": {
            "more_bytes": found.room.more_bytes,
            "step_ns": found.room.step_ns,
            "plan": found.room.says,
            "free_bytes": found.room.free_bytes,
        },
        "in_one_sum_ns": found.in_one.step_ns if found.in_one else None,
        "overhead": found.overhead.ratio if found.overhead else None,
    }
