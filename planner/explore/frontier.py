"""Finds every plan that is a best trade of time against memory, or of time against devices, each with its own gap.

A front is traced by limits. The fastest plan for at most so many bytes a device (or devices) is also the answer to
every limit down to what it uses. The widest stretch of limits without an answer is asked next, in its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isqrt, prod
from typing import Literal

from planner.arrays import NS_PER_S
from planner.cluster import Cluster, NodeGroup, total_devices, with_at_most
from planner.limits import Effort
from planner.milp import Instance, Question, changed, solve_or_none
from planner.plan import Plan, with_bounds, world_size

Trade = Literal["memory", "devices"]
MOST_SOLVES = 16  # questions for each front
RESOLUTION = 0.02  # stretches of limits narrower than this share are not asked


@dataclass(frozen=True, kw_only=True)
class FrontierRow:
    """One plan of a front: no plan that uses less is as fast."""

    plan: Plan
    best_in: tuple[Trade, ...]

    @property
    def step_ns(self) -> int:
        """Returns the predicted nanoseconds of a step."""
        return self.plan.prediction.step_ns

    @property
    def devices(self) -> int:
        """Returns how many devices the plan uses."""
        return world_size(self.plan.axes)

    @property
    def peak_bytes(self) -> int:
        """Returns the predicted peak of the fullest device in bytes, without the margin."""
        return peak_bytes(self.plan)

    @property
    def gap(self) -> float:
        """Returns the gap of the plan's certificate as a share, 0 without one."""
        return self.plan.certificate.gap if self.plan.certificate else 0.0

    @property
    def samples_per_s(self) -> float:
        """Returns the samples that the plan trains in a second."""
        return samples_per_s(self.plan)


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Rows from the fastest to the thriftiest; `whole` names the fronts of which no stretch was left unasked."""

    rows: tuple[FrontierRow, ...]
    whole: tuple[Trade, ...]
    resolution: float = RESOLUTION

    def front(self, trade: Trade) -> tuple[FrontierRow, ...]:
        """Returns the rows of one front.

        Args: `trade` names what time is traded against, memory or devices.
        Returns: rows from the fastest to the thriftiest.
        """
        return tuple(row for row in self.rows if trade in row.best_in)

    def named(self) -> dict[str, FrontierRow]:
        """Returns the rows by the names that their files have, such as "01"."""
        width = max(2, len(str(len(self.rows))))
        return {f"{index:0{width}d}": row for index, row in enumerate(self.rows, start=1)}


def peak_bytes(plan: Plan) -> int:
    """Returns the predicted peak of the fullest device in bytes, without the margin.

    Args: `plan` predicts the memory of every worker.
    Returns: the largest total of a worker less its margin.
    """
    return max(memory.total - memory.margin for memory in plan.prediction.memory)


def samples_per_s(plan: Plan) -> float:
    """Returns the samples that a plan trains in a second.

    Args: `plan` with its batch and predicted step.
    Returns: samples of the global batch over the seconds of a step.
    """
    return plan.batch.samples / (plan.prediction.step_ns / NS_PER_S)


def frontier(
    question: Question,
    *,
    trades: Sequence[Trade] = ("memory", "devices"),
    most: int = MOST_SOLVES,
    resolution: float = RESOLUTION,
) -> Frontier:
    """Traces the fronts of time against memory and of time against devices.

    Args: `most` limits the questions asked for each front; stretches of limits narrower than `resolution`, a share,
    are not asked.
    Returns: the plans from the fastest to the thriftiest; none where nothing fits at all (`solve` says why).
    Raises: BadInput where the question does not match its profile.
    """
    instance = question.instance()
    top = solve_or_none(instance, question.effort)
    if top is None:
        return Frontier(rows=(), whole=tuple(trades), resolution=resolution)
    best_in: dict[str, list[Trade]] = {}
    plans: dict[str, Plan] = {}
    whole: list[Trade] = []
    for trade in trades:
        front = _memory_front if trade == "memory" else _device_front
        found, done = front(instance, question.effort, top, most, resolution)
        whole += [trade] if done else []
        for plan in found:
            name = _name(plan)
            plans.setdefault(name, plan)
            best_in.setdefault(name, []).append(trade)
    rows = [FrontierRow(plan=plan, best_in=tuple(best_in[name])) for name, plan in plans.items()]
    rows.sort(key=lambda row: (row.step_ns, row.peak_bytes, row.devices))
    return Frontier(rows=tuple(rows), whole=tuple(whole), resolution=resolution)


def _name(plan: Plan) -> str:
    """Returns a plan's decisions as text, without its proof: equal plans have equal names."""
    return plan.model_dump_json(exclude={"certificate"})


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The fastest plan under a limit, and how much of the limit it uses."""

    limit: int
    uses: int
    plan: Plan


def _memory_front(
    space: Instance, effort: Effort, top: Plan, most: int, resolution: float
) -> tuple[list[Plan], bool]:
    def ask(limit: int) -> Plan | None:
        found = solve_or_none(changed(space, cluster=with_at_most(space.cluster, limit)), effort)
        return None if found is None else _with_limits_of(space.cluster, found)

    first = _Answer(limit=peak_bytes(top), uses=peak_bytes(top), plan=top)
    return _traced(first, _least_bytes(space), ask, peak_bytes, most, resolution)


def _device_front(
    space: Instance, effort: Effort, top: Plan, most: int, resolution: float
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
    """Returns the plans of the front below `first`, and whether all of it was asked.

    Nothing fits within `floor`.
    """
    answers, nothing = [first], floor
    for _ in range(most):
        stretch = _widest(answers, nothing, resolution)
        if stretch is None:
            break
        low, high = stretch
        limit = min(max(isqrt(max(low, 1) * high), low + 1), high - 1)
        try:
            plan = ask(limit)
        except KeyboardInterrupt:  # with the plans so far; this stretch was left unasked
            break
        if plan is None:
            nothing = limit
        else:
            answers.append(_Answer(limit=limit, uses=uses(plan), plan=plan))
    return list({_name(plan): plan for plan in _best(answers)}.values()), _widest(
        answers, nothing, resolution
    ) is None


def _widest(answers: list[_Answer], nothing: int, resolution: float) -> tuple[int, int] | None:
    """Returns the open stretch of limits with the largest ratio of its ends; both ends are answered."""
    ordered = sorted(answers, key=lambda a: a.uses)
    limits = [(nothing, -1), *((a.limit, a.plan.prediction.step_ns) for a in ordered[:-1])]
    below = accumulate(limits, max)  # a thriftier plan may answer a larger limit than the next one
    found = []
    for (low, slower_ns), above in zip(below, ordered, strict=True):
        told_apart = above.uses > low + 1 and above.uses > low * (1 + resolution)
        if told_apart and not 0 <= slower_ns <= above.plan.prediction.step_ns:
            found.append((above.uses / max(low, 1), low, above.uses))
    return max(found)[1:] if found else None


def _best(answers: list[_Answer]) -> list[Plan]:
    """Returns the plans that no thriftier plan equals, with the best lower bound that holds for each.

    A larger limit is never slower, so its bound holds for smaller limits too, as far as both have the same orders. An
    order that was rescheduled under the smaller limit alone may be faster; the plan then keeps its own bound.
    """
    front: list[Plan] = []
    bound = 0
    ordered = sorted(answers, key=lambda a: (-a.limit, a.uses))
    for answer in ordered:
        proof = answer.plan.certificate
        assert proof is not None
        bound = max(bound, proof.bound_ns)
        thriftier = [a for a in answers if a.uses < answer.uses]
        if all(a.plan.prediction.step_ns > answer.plan.prediction.step_ns for a in thriftier):
            front.append(with_bound(answer.plan, bound))
    return front


def with_bound(plan: Plan, bound_ns: int) -> Plan:
    """Returns a plan with a higher lower bound, unless the plan itself is faster than that.

    Args: `bound_ns` is of a question whose answer is never slower.
    """
    proof = plan.certificate
    if proof is None or not proof.bound_ns < bound_ns <= proof.objective_ns:
        return plan
    raised = with_bounds(proof, bound_ns, proof.own_order_bound_ns or bound_ns)
    return plan.model_copy(update={"certificate": raised})


def _least_bytes(space: Instance) -> int:
    """Returns the bytes of the parameters and their gradients on each device if spread over all: nothing fits within
    less.
    """
    graph, kept, halved = space.profile.graph, space.profile.kept.counts, space.profile.halved
    own = sum(row.bytes // (1 + (row.name in halved)) for row in graph.parameters if row.users)
    for row in graph.trained:
        size = max(1, prod(row.shape))
        own += row.bytes * kept.get(row.name, size) // size
    return own // total_devices(space.cluster) - 1


def _with_limits_of(cluster: Cluster, plan: Plan) -> Plan:
    """Returns a plan that was solved under tighter limits with the memory limits that the devices have."""
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
