"""The contents of each message between two stages, derived from the captured graph, in both directions.

A Value goes straight from its producer to each stage that reads it. Its gradient comes back along the chain
of those stages, last first, each adding its own share, and reaches the producer from the first of them.
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
    """The names of the Values that travel: `act[sender, receiver]` and `grad[sender, receiver]`, in the
    order of the graph."""

    act: dict[tuple[int, int], Names]
    grad: dict[tuple[int, int], Names]

    def names(self, direction: Direction, sender: int, receiver: int) -> Names:
        """Returns the names of what one message carries.

        Args: `direction` is "act" or "grad"; `sender` and `receiver` are numbers of stages.
        """
        return (self.act if direction == "act" else self.grad)[sender, receiver]

    def leaving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        """Returns receiver and names of all messages that a stage sends for a micro-batch, by receiver.

        Args: `direction` is "act" or "grad".
        """
        table = self.act if direction == "act" else self.grad
        return tuple(
            (receiver, names) for (sender, receiver), names in sorted(table.items()) if sender == stage
        )

    def arriving(self, direction: Direction, stage: int) -> tuple[tuple[int, Names], ...]:
        """Returns sender and names of all messages that a stage receives for a micro-batch, by sender.

        Args: `direction` is "act" or "grad".
        """
        table = self.act if direction == "act" else self.grad
        return tuple(
            (sender, names) for (sender, receiver), names in sorted(table.items()) if receiver == stage
        )


def routes_of(graph: ModelGraph, stage_of: Sequence[int]) -> Routes:
    """Works out what travels between stages in both directions.

    Args: `stage_of` has the stage of each layer, in the graph's order.
    Returns: routes, without pairs of stages that send each other nothing.
    """
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
    """Raises BadPlan where a plan's messages are not those of the model: it would wait for ever, or lose a gradient.

    Args: `hops` are the plan's.
    """
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
    """Returns a captured model with its layers in the order in which the plan's stages name them.

    Args: `plan` may keep the model's own order.
    Raises: BadPlan where the layers are not those of the model.
    """
    return captured.ordered([layer.name for layer in as_planned(captured.graph, plan).layers])


def stages_of_layers(plan: Plan, graph: ModelGraph) -> list[int]:
    """Returns the stage of each layer.

    Args: `graph` has its layers in the plan's order, see `in_order_of`.
    Raises: BadPlan where the plan's stages are not the layers of the model in order.
    """
    planned = [name for stage in plan.stages for name in stage.layers]
    actual = [layer.name for layer in graph.layers]
    if planned != actual:
        at = next((i for i, (a, b) in enumerate(zip(planned, actual, strict=False)) if a != b), len(planned))
        have = planned[at] if at < len(planned) else "nothing"
        want = actual[at] if at < len(actual) else "nothing"
        raise BadPlan(f"the stages have '{have}' where the model has '{want}': plan the model again")
    return [number for number, stage in enumerate(plan.stages) for _ in stage.layers]
