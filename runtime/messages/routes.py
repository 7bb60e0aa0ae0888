"""What each message between two stages carries: derived from the captured graph, in both directions.

A Value goes straight from its producer to each stage that reads it. Its gradient comes back along the chain of
those stages, last first, each adding its own share, and reaches the producer from the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from planner.capture import Captured
from planner.errors import BadPlan
from planner.model import ModelGraph, crossings
from planner.plan import Hop, Plan, as_planned

Names = tuple[str, ...]
Direction = Literal["act", "grad"]


@dataclass(frozen=True)
class Routes:
    """`act[sender, receiver]` and `grad[sender, receiver]`: names of the Values, in the order of the graph."""

    act: dict[tuple[int, int], Names]
    grad: dict[tuple[int, int], Names]

    def names(self, direction: Direction, sender: int, receiver: int) -> Names:
        return (self.act if direction == "act" else self.grad)[sender, receiver]

    def leaving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        table = self.act if direction == "act" else self.grad
        return tuple(
            (receiver, names) for (sender, receiver), names in sorted(table.items()) if sender == stage
        )

    def arriving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        table = self.act if direction == "act" else self.grad
        return tuple(
            (sender, names) for (sender, receiver), names in sorted(table.items()) if receiver == stage
        )


def routes_of(graph: ModelGraph, stage_of: Sequence[int]) -> Routes:
    act: dict[tuple[int, int], list[str]] = {}
    grad: dict[tuple[int, int], list[str]] = {}
    for crossing in crossings(graph, stage_of):
        for target in crossing.targets:
            act.setdefault((crossing.source, target), []).append(crossing.value)
        if graph.value[crossing.value].needs_grad:
            chain = (crossing.source, *crossing.targets)
            for earlier, later in pairwise(chain):
                grad.setdefault((later, earlier), []).append(crossing.value)
    return Routes(
        act={edge: tuple(names) for edge, names in act.items()},
        grad={edge: tuple(names) for edge, names in grad.items()},
    )


def check_hops(routes: Routes, hops: Sequence[Hop]) -> None:
    """A plan whose messages are not those of the model would wait for ever, or lose a gradient."""
    planned: dict[tuple[str, int, int], set[str]]
    planned = {(hop.direction, hop.sender, hop.receiver): set(hop.values) for hop in hops}
    needed: dict[tuple[str, int, int], set[str]]
    needed = {("act", *edge): set(names) for edge, names in routes.act.items()}
    needed |= {("grad", *edge): set(names) for edge, names in routes.grad.items()}
    for direction, sender, receiver in sorted({*planned, *needed}):
        have, want = planned.get((direction, sender, receiver)), needed.get((direction, sender, receiver))
        if have != want:
            raise BadPlan(
                f"hop {direction} {sender}>{receiver} carries {sorted(have or ())}, "
                f"the model needs {sorted(want or ())}: plan the model again"
            )


def in_order_of(plan: Plan, captured: Captured) -> Captured:
    """A plan's stages name the layers in an order of its own, where that of the model is not the best."""
    return captured.ordered([layer.name for layer in as_planned(captured.graph, plan).layers])


def stages_of_layers(plan: Plan, graph: ModelGraph) -> list[int]:
    """Stage of each layer; BadPlan where the plan's stages are not the layers of the model in order."""
    planned = [name for stage in plan.stages for name in stage.layers]
    actual = [layer.name for layer in graph.layers]
    if planned != actual:
        at = next((i for i, (a, b) in enumerate(zip(planned, actual, strict=False)) if a != b), len(planned))
        have = planned[at] if at < len(planned) else "nothing"
        want = actual[at] if at < len(actual) else "nothing"
        raise BadPlan(f"the stages have '{have}' where the model has '{want}': plan the model again")
    return [number for number, stage in enumerate(plan.stages) for _ in stage.layers]
