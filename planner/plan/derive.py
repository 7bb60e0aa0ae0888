"""Derives from a plan the order of the layers that it cuts, the model in that order, the schedule, and its refusals.

A plan's stages, one after the other, name all layers. That is the order the cuts are made in; nothing else says it.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.errors import BadPlan, Violation
from planner.model import ModelGraph, misplaced, refusals
from planner.plan.plan import Plan
from planner.schedule import Schedule, parse_orders


def layers_of(plan: Plan) -> tuple[str, ...]:
    """Returns the names of all layers in the order of the plan.

    Args: `plan` need not be right for any model.
    """
    return tuple(name for stage in plan.stages for name in stage.layers)


def as_planned(graph: ModelGraph, plan: Plan) -> ModelGraph:
    """Returns the model with its layers in the order of a plan.

    Args: `graph` is returned as it is where the plan's layers are others.
    Raises: BadPlan where a layer stands before one whose output it reads.
    """
    names = layers_of(plan)
    if sorted(names) != sorted(layer.name for layer in graph.layers):
        return graph
    if wrong := next(misplaced(graph, names), None):
        raise BadPlan(f"layer '{wrong[0]}' stands before '{wrong[1]}', which it hangs on")
    return graph.ordered(names)


def schedule_of(plan: Plan) -> Schedule:
    """Returns the schedule that a plan's orders say.

    Args: `plan` may have any orders; whether they can run is not checked.
    """
    choice = plan.schedule
    return Schedule(
        family=choice.family,
        place=choice.place,
        pipe_of=choice.pipe_of,
        orders=parse_orders(choice.orders),
        settings=dict(choice.settings),
    )


def stage_rows(plan: Plan) -> list[dict[str, object]]:
    """Returns a row for each stage, as data.

    Returns: its workers and layers, durations in nanoseconds, and the bytes that it sends a micro-batch.
    """
    return [
        {
            "stage": index,
            "workers": sorted({row[index] for row in plan.schedule.place}),
            "layers": list(stage.layers),
            "forward_ns": times.forward_ns,
            "backward_ns": times.backward_ns,
            "recompute": stage.recompute_before or stage.recompute,
            "sent_bytes": sum(hop.bytes for hop in plan.hops if hop.sender == index),
        }
        for index, (stage, times) in enumerate(zip(plan.stages, plan.times, strict=True))
    ]


def refused(plan: Plan, graph: ModelGraph, joint: str = "") -> Iterator[Violation]:
    """Yields what the model itself does not allow of a plan, as `planner.model.refusals` has it.

    Args: `graph` is the model, in any order; `joint` names an optimizer that looks at all parameters together.
    """
    return refusals(
        graph,
        data=plan.axes.data,
        spatial=plan.axes.spatial,
        pipes=schedule_of(plan).pipes,
        compiled=plan.execution == "compiled",
        micro=plan.batch.micro,
        stages=len(plan.stages),
        shard=plan.shard_optimizer,
        joint=joint,
    )
