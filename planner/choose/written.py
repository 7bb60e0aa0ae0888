"""Writes a choice as lines of a plan's section `cut`, and reads it back as a `LocalGraph` of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.choose.options import Decisions
from planner.choose.work import GroupWork
from planner.layout import ADDENDS, ALIKE, WHOLE, LocalGraph, LocalOperation, Wishes, propagate
from planner.spatial import Operation


def taken(decisions: Decisions, choice: Sequence[int]) -> dict[str, LocalOperation]:
    """Returns every operation of the folded model as it is done by a choice.

    Args: `choice` has the option of each decision.
    """
    found: dict[str, LocalOperation] = {}
    for decision, option in zip(decisions.found, choice, strict=True):
        found |= decision.options[option]
    return found


def exactly(decisions: Decisions, choice: Sequence[int]) -> Wishes:
    """Returns the wishes by which every operation of the whole model does what a choice says."""
    done = taken(decisions, choice)
    stands = decisions.graph.stands_for

    def wished(operation: Operation, axis: int) -> Sequence[tuple[str, object]]:
        local = done.get(stands.get(operation.name, operation.name))
        factor = ALIKE if local is None else local.factors[axis]
        if factor == ADDENDS:
            return ()
        return ((factor or WHOLE, ""),)

    return wished


def graph_of(work: GroupWork, decisions: Decisions, choice: Sequence[int]) -> LocalGraph:
    """Returns the whole model as a choice has it."""
    return propagate(
        work.operations, decisions.mesh, exactly(decisions, choice), work.trained, work.resolved
    )
