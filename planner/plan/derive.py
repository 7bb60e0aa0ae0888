"""Orders of a model's layers other than that of its capture: what makes one, and the model in it.

A plan's stages, one after the other, name all layers; that is the order its cuts are made in. Nothing else says it.
"""

from __future__ import annotations

from planner.errors import BadPlan
from planner.model import ModelGraph, misplaced
from planner.plan.plan import Plan
from planner.schedule import Schedule, parse_orders


def layers_of(plan: Plan) -> tuple[str, ...]:
    return tuple(name for stage in plan.stages for name in stage.layers)


def as_planned(graph: ModelGraph, plan: Plan) -> ModelGraph:
    """The model in the order of a plan; the model itself where the plan's layers are others."""
    names = layers_of(plan)
    if sorted(names) != sorted(layer.name for layer in graph.layers):
        return graph
    if wrong := next(misplaced(graph, names), None):
        raise BadPlan(f"layer '{wrong[0]}' stands before '{wrong[1]}', which it hangs on")
    return graph.ordered(names)


def schedule_of(plan: Plan) -> Schedule:
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
