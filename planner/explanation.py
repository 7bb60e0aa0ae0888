"""Why a plan and no other: what its step is made of, what its rivals lose, what more memory would give, near-ties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planner.cluster import Cluster
from planner.console import columns, duration, memory
from planner.frontier import Asked
from planner.milp.explain import parts_ns
from planner.milp.questions import changed, with_more
from planner.milp.solve import answered, fastest
from planner.milp.survey import Search, Tried
from planner.plan import Plan
from planner.profile import Profile
from planner.scaling import Lemma, overhead
from planner.schedule.families import FAMILIES

GIB = 1 << 30
_SHOWN = 6
_SEEN = 0.0005  # share of a step below which a part is not told


@dataclass(frozen=True, kw_only=True)
class Part:
    """A plan that was looked at, and what its step is made of, in nanoseconds."""

    name: str
    step_ns: int
    parts_ns: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Room:
    """The fastest plan with more memory on each device."""

    more_bytes: int
    step_ns: int
    says: str
    free_bytes: int  # of the fullest device, with the memory there is


@dataclass(frozen=True, kw_only=True)
class Explanation:
    plan: Plan
    chosen: Part
    runners_up: tuple[Part, ...]  # the best plan of each other family that was answered
    near_ties: tuple[Part, ...]  # plans of the search that the errors of the costs do not tell from this one
    error: float  # of the costs, as a share, as far as the error bar shows it
    room: Room
    overhead: Lemma | None
    in_one: Part | None = None  # where gradients are summed in parts: the same plan with one sum a device

    @property
    def within(self) -> float:
        """Where every cost is off by at most `error`, nothing is faster by more than this share."""
        return 2 * self.error / (1 - self.error) if self.error < 1 else float("inf")


def explained(
    profile: Profile, cluster: Cluster, batch: int, asked: Asked | None = None, *, more_bytes: int = GIB
) -> Explanation:
    """The plan that `solve` finds, and why; Infeasible where there is none."""
    asked = asked or Asked()
    space = asked.space(profile, cluster, batch)
    plan, found = answered(space, asked.effort)
    assert found.best is not None
    error = error_of(plan)
    within = 2 * error / (1 - error) if error < 1 else float("inf")
    roomier = fastest(changed(space, cluster=with_more(cluster, more_bytes)), asked.effort)
    return Explanation(
        plan=plan,
        chosen=_part(found.best),
        runners_up=tuple(_runners_up(found)),
        near_ties=tuple(_near(found, found.limit * (1 + within))),
        error=error,
        room=_room(plan, roomier, more_bytes),
        overhead=overhead(plan),
        in_one=_in_one(found),
    )


def error_of(plan: Plan) -> float:
    seen = plan.prediction
    return max(seen.high_ns - seen.step_ns, seen.step_ns - seen.low_ns) / max(seen.step_ns, 1)


def _part(tried: Tried) -> Part:
    assert tried.answer is not None
    return Part(
        name=str(tried.shape), step_ns=tried.answer.ns, parts_ns=parts_ns(tried.problem, tried.answer)
    )


def _others(found: Search) -> list[Tried]:
    """Those that lost, the best first."""
    others = [tried for tried in found.tried.values() if tried.answer is not None and tried is not found.best]
    return sorted(others, key=lambda tried: (tried.answer.ns if tried.answer else 0, tried.shape))


def _in_one(found: Search) -> Part | None:
    assert found.best is not None
    shape = found.best.shape
    if not FAMILIES[shape.family].mixes:
        return None
    some = bool(shape.chosen)
    tried = found.look(replace(shape, family="1f1b", chunks=1, listed="", chosen=(), sparing=some))
    if tried is not None and tried.answer is None:
        found.answer(tried)
    return None if tried is None or tried.answer is None else _part(tried)


def _runners_up(found: Search) -> Iterator[Part]:
    assert found.best is not None
    seen = {found.best.shape.family}
    for tried in _others(found):
        if tried.shape.family not in seen and len(seen) <= _SHOWN:
            seen.add(tried.shape.family)
            yield _part(tried)


def _near(found: Search, limit_ns: float) -> Iterator[Part]:
    """Each way to train once, in the best of its orders."""
    near = [tried for tried in _others(found) if tried.answer is not None and tried.answer.ns <= limit_ns]
    assert found.best is not None
    firsts: dict[str, Tried] = {}
    for tried in (found.best, *near):
        firsts.setdefault(str(replace(tried.shape, listed="", chosen=())), tried)
    yield from [_part(tried) for tried in firsts.values()][1 : 1 + _SHOWN]


def _room(plan: Plan, roomier: Plan | None, more_bytes: int) -> Room:
    free = min(m.limit - m.total for m in plan.prediction.memory)
    faster = roomier is not None and roomier.prediction.step_ns < plan.prediction.step_ns
    best = roomier if roomier is not None and faster else plan
    axes = best.axes
    return Room(
        more_bytes=more_bytes,
        step_ns=best.prediction.step_ns,
        says=f"{best.schedule.family}, data {axes.data} x pipeline {axes.pipeline} x spatial {axes.spatial}, "
        f"micro-batch {best.batch.micro} x {best.batch.micros}",
        free_bytes=free,
    )


def text(found: Explanation) -> str:
    parts = [
        _made_of(found.chosen),
        _hidden(found),
        _losses(found),
        _errors(found),
        _memory(found),
        _overhead(found),
    ]
    return "\n\n".join(part for part in parts if part)


def _made_of(chosen: Part) -> str:
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
        f"Out-of-order backprop saves {duration(saved)} of {duration(found.in_one.step_ns)} "
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
            duration(each.step_ns),
            *(_signed(each.parts_ns[name] - found.chosen.parts_ns[name]) for name in names),
        )
        for each in found.runners_up
    ]
    return columns(rows, ("runner-up", "step", *names))


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else ''}{duration(ns)}" if round(ns) else "0"


def _errors(found: Explanation) -> str:
    if not found.error:
        return "Its costs carry no spread: what their error would change is not known."
    head = (
        f"Its costs are known to {found.error:.1%}; if all are, no plan is faster by more than {found.within:.1%} "
        f"(and the gap of its proof)."
    )
    if not found.near_ties:
        return f"{head} No other plan that was answered comes that near."
    rows = [(each.name, duration(each.step_ns)) for each in found.near_ties]
    return f"{head}\n{columns(rows, ('too near to tell', 'step'))}"


def _memory(found: Explanation) -> str:
    room, step_ns = found.room, found.plan.prediction.step_ns
    more = f"{memory(room.more_bytes)} more on each device"
    if room.step_ns < step_ns:
        saved = step_ns - room.step_ns
        return f"{more} would save {duration(saved)} a step ({saved / step_ns:.1%}): {room.says}."
    return f"{more} would change nothing; its fullest device has {memory(room.free_bytes)} left."


def _overhead(found: Explanation) -> str:
    lemma = found.overhead
    if lemma is None or not lemma.ratio:
        return ""
    return (
        f"What is not computing takes {lemma.ratio:.3g} of all its computing on one device: if that stays, no number "
        f"of devices is more than {lemma.limit:.4g} times as fast as one."
    )


def as_dict(found: Explanation) -> dict[str, object]:
    def told(part: Part) -> dict[str, object]:
        return {"name": part.name, "step_ns": part.step_ns, "parts_ns": dict(part.parts_ns)}

    return {
        "chosen": told(found.chosen),
        "runners_up": [told(part) for part in found.runners_up],
        "near_ties": [told(part) for part in found.near_ties],
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
