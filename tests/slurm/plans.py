"""Plans over several nodes, made without a solver, whose prediction is what their own numbers amount to."""

from __future__ import annotations

from math import prod

from planner.plan import Plan, schedule_of
from planner.simulate import compile, duration_vector, period
from tests.captures import captured_of
from tests.runtime.plans import plan_for
from tests.runtime.spatial.test_plans import spatially


def plan_over(
    workload: str,
    *,
    ranks_a_node: int = 2,
    arguments: dict[str, str] | None = None,
    micro: int = 2,
    grids: dict[int, tuple[int, ...]] | None = None,
    **shape: object,
) -> Plan:
    """Ranks fill the slots of node 0, then those of node 1, and so on. `grids` are the parts of a sample, by stage."""
    given = arguments or {}
    _, captured = captured_of(workload, given, micro)
    plan = plan_for(captured.graph, workload, arguments=given, micro=micro, **shape)  # type: ignore[arg-type]
    if grids is not None:
        plan = spatially(plan, grids, max(prod(grid) for grid in grids.values()))
    places = tuple(
        place.model_copy(update={"node": place.rank // ranks_a_node, "slot": place.rank % ranks_a_node})
        for place in plan.places
    )
    compiled = compile(schedule_of(plan), plan.hops, update=plan.schedule.update)
    step_ns = period(compiled, duration_vector(plan.times, plan.hops)).period_ns
    told = {"step_ns": step_ns, "low_ns": step_ns, "high_ns": step_ns}
    prediction = plan.prediction.model_copy(update=told)
    return plan.model_copy(update={"places": places, "prediction": prediction})
