"""What a plan's table of places asks of SLURM, and which task of a job stands where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import BadInput
from planner.plan import Place, Plan


@dataclass(frozen=True)
class Layout:
    """`tasks[i]` is the number of ranks on the i-th node of the job."""

    tasks: tuple[int, ...]
    devices: int  # a node

    @property
    def ranks(self) -> int:
        return sum(self.tasks)

    @property
    def even(self) -> bool:
        return len(set(self.tasks)) == 1


def of(plan: Plan) -> Layout:
    rows = by_node(plan.places)
    return Layout(tuple(len(row) for row in rows), 1 + max(place.slot for place in plan.places))


def by_node(places: Sequence[Place]) -> list[list[Place]]:
    """The places of each node, nodes and ranks counting up: the order in which SLURM numbers its tasks."""
    ordered = sorted(places, key=lambda place: place.rank)
    if [place.rank for place in ordered] != list(range(len(ordered))):
        raise BadInput("ranks are not 0, 1, 2 ...", where="places")
    for before, after in pairwise(ordered):
        if (after.node, after.slot) <= (before.node, before.slot):
            raise BadInput(
                f"rank {after.rank} (node {after.node}, slot {after.slot}) stands before rank {before.rank}",
                where="places",
                allowed="ranks that fill the slots of a node in order, then the next node's, as SLURM numbers tasks",
            )
    rows: dict[int, list[Place]] = {}
    for place in ordered:
        rows.setdefault(place.node, []).append(place)
    return list(rows.values())
