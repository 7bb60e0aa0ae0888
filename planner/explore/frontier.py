"""Every plan that is the best trade of time against memory, or of time against devices, each with its own gap.

A front is traced by limits: the fastest plan for at most so many bytes a device (or devices) is also the answer to
every limit down to what it uses. The widest stretch of limits without an answer is asked next, in its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal

from planner.cluster import Cluster, NodeGroup, total_devices, with_at_most
from planner.milp import Asked, Effort, Instance, changed, solve_or_none
from planner.plan import Plan, world_size
from planner.profile import Profile

Trade = Literal["memory", "devices"]
MOST_SOLVES = 16  # a front
RESOLUTION = 0.02  # stretches of limits narrower than this share are not asked


@dataclass(frozen=True, kw_only=True)
class FrontierRow:
    """One plan of a front: none is as fast with less."""

    plan: Plan
    best_in: tuple[Trade, ...]

    @property
    def step_ns(self) -> int:
        return self.plan.prediction.step_ns

    @property
    def devices(self) -> int:
        return world_size(self.plan.axes)

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.plan)

    @property
    def gap(self) -> float:
        return self.plan.certificate.gap if self.plan.certificate else 0.0

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.plan)


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Rows from the fastest to the thriftiest; `whole` names the fronts of which no stretch was left unasked."""

    rows: tuple[FrontierRow, ...]
    whole: tuple[Trade, ...]
    resolution: float = RESOLUTION

    def front(self, trade: Trade) -> tuple[FrontierRow, ...]:
        return tuple(row for row in self.rows if trade in row.best_in)

    def named(self) -> dict[str, FrontierRow]:
        """Returns the rows by the names that their files have, such as "01"."""
        width = max(2, len(str(len(self.rows))))
        return {f"{index:0{width}d}": row for index, row in enumerate(self.rows, start=1)}


def peak_bytes(plan: Plan) -> int:
    """Returns the predicted peak of the fullest device.

    Returns: bytes, without the margin.
    """
    return max(memory.total - memory.margin for memory in plan.prediction.memory)


def samples_per_s(plan: Plan) -> float:
    return plan.batch.samples / (plan.prediction.step_ns / 1e9)


def frontier(
    profile: Profile,
    cluster: Cluster,
    batch: int,
    asked: Asked | None = None,
    *,
    trades: Sequence[Trade] = ("memory", "devices"),
    most: int = MOST_SOLVES,
    resolution: float = RESOLUTION,
) -> Frontier:
    """Finds every plan that is the best trade of time against memory, or of time against devices.

    Args: at most `most` questions are asked a trade; stretches narrower than the share `resolution` are not.
    Returns: no rows where nothing fits at all; `solve` says why.
    """
    asked = asked or Asked()
    space = asked.space(profile, cluster, batch)
    top = solve_or_none(space, asked.effort)
    if top is None:
        return Frontier(rows=(), whole=tuple(trades), resolution=resolution)
    best_in: dict[str, list[Trade]] = {}
    plans: dict[str, Plan] = {}
    whole: list[Trade] = []
    for trade in trades:
        front = _memory_front if trade == "memory" else _device_front
        found, done = front(space, asked.effort, top, most, resolution)
        whole += [trade] if done else []
        for plan in found:
            name = _name(plan)
            plans.setdefault(name, plan)
            best_in.setdefault(name, []).append(trade)
    rows = [FrontierRow(plan=plan, best_in=tuple(best_in[name])) for name, plan in plans.items()]
    return Frontier(rows=tuple(sorted(rows, key=_place)), whole=tuple(whole), resolution=resolution)


def _place(row: FrontierRow) -> tuple[int, int, int]:
    return row.step_ns, row.peak_bytes, row.devices


def _name(plan: Plan) -> str:
    """Returns the decisions of a plan as text, whatever its proof."""
    return plan.model_dump_json(exclude={"certificate"})


@dataclass(frozen=True, kw_only=True)
class _Answer:
    limit: int
    uses: int
    plan: Plan


def _memory_front(
    space: Instance, effort: Effort | None, top: Plan, most: int, resolution: float
) -> tuple[list[Plan], bool]:
    def ask(limit: int) -> Plan | None:
        found = solve_or_none(changed(space, cluster=with_at_most(space.cluster, limit)), effort)
        return None if found is None else _with_limits_of(space.cluster, found)

    first = _Answer(limit=peak_bytes(top), uses=peak_bytes(top), plan=top)
    return _traced(first, _least_bytes(space), ask, peak_bytes, most, resolution)


def _device_front(
    space: Instance, effort: Effort | None, top: Plan, most: int, resolution: float
) -> tuple[list[Plan], bool]:
    def ask(limit: int) -> Plan | None:
        return solve_or_none(changed(space, pins=replace(space.pins, devices=limit)), effort)

    def uses(plan: Plan) -> int:
        return world_size(plan.axes)

    first = _Answer(limit=uses(top), uses=uses(top), plan=top)
    return _traced(first, 0, ask, uses, most, 0.0)


def _traced(
    first: _Answer,
    floor: int,
    ask: Callable[[int], Plan | None],
    uses: Callable[[Plan], int],
    most: int,
    resolution: float,
) -> tuple[list[Plan], bool]:
    """Returns the frontier below `first`, and whether all of it was asked; nothing fits within `floor`."""
    answers, nothing = [first], floor
    for _ in range(most):
        stretch = _widest(answers, nothing, resolution)
        if stretch is None:
            break
        low, high = stretch
        limit = min(max(isqrt(max(low, 1) * high), low + 1), high - 1)
        plan = ask(limit)
        if plan is None:
            nothing = limit
        else:
            answers.append(_Answer(limit=limit, uses=uses(plan), plan=plan))
    return list({_name(plan): plan for plan in _best(answers)}.values()), _widest(
        answers, nothing, resolution
    ) is None


def _widest(answers: list[_Answer], nothing: int, resolution: float) -> tuple[int, int] | None:
    """Returns the open stretch of limits with the largest ratio of its ends, both of which are answered."""
    ordered = sorted(answers, key=lambda a: a.uses)
    below = [(nothing, -1), *((a.limit, a.plan.prediction.step_ns) for a in ordered[:-1])]
    found = []
    for (low, slower_ns), above in zip(below, ordered, strict=True):
        told_apart = above.uses > low + 1 and above.uses > low * (1 + resolution)
        if told_apart and not 0 <= slower_ns <= above.plan.prediction.step_ns:
            found.append((above.uses / max(low, 1), low, above.uses))
    return max(found)[1:] if found else None


def _best(answers: list[_Answer]) -> list[Plan]:
    """Returns the plans that nothing thriftier equals, each with the best bound that holds: more memory is never slower."""
    front: list[Plan] = []
    bound = 0
    ordered = sorted(answers, key=lambda a: (-a.limit, a.uses))
    for answer in ordered:
        proof = answer.plan.certificate
        assert proof is not None
        bound = max(bound, proof.bound_ns)
        thriftier = [a for a in answers if a.uses < answer.uses]
        if all(a.plan.prediction.step_ns > answer.plan.prediction.step_ns for a in thriftier):
            front.append(_with_bound(answer.plan, bound))
    return front


def _with_bound(plan: Plan, bound_ns: int) -> Plan:
    proof = plan.certificate
    if proof is None or proof.bound_ns >= bound_ns:
        return plan
    return plan.model_copy(update={"certificate": proof.model_copy(update={"bound_ns": bound_ns})})


def _least_bytes(space: Instance) -> int:
    """Returns the bytes of parameters and gradients, spread over every device: nothing fits within less."""
    weights = space.profile.graph.parameters
    own = sum(weight.bytes * (2 if weight.trainable else 1) for weight in weights)
    return own // total_devices(space.cluster) - 1


def _with_limits_of(cluster: Cluster, plan: Plan) -> Plan:
    """Returns a plan that was solved under tighter limits with the limits that its devices have."""
    devices: dict[int, list[NodeGroup]] = {}
    for place in plan.places:
        devices.setdefault(place.pipeline, []).append(cluster.groups[place.node])
    memory = tuple(
        part.model_copy(
            update={"limit": min(devices[worker], key=lambda group: group.limit_bytes).capacity_bytes}
        )
        for worker, part in enumerate(plan.prediction.memory)
    )
    return plan.model_copy(update={"prediction": plan.prediction.model_copy(update={"memory": memory})})
