"""How a plan cuts samples in space, and shares them: grids that the axis has ranks for, changes in the layers' order."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from planner.plan import Plan, grids_of, shared_from
from planner.violation import Violation


def grids(plan: Plan) -> Iterator[Violation]:
    """A stage's grids have one cell a spatial rank, or a few ranks compute each alike, or it computes whole samples."""
    for index, stage in enumerate(plan.stages):
        where = f"stage {index}"
        for cells in grids_of(stage):
            if plan.axes.spatial % prod(cells) or prod(cells) == 1 < plan.axes.spatial:
                grid = " x ".join(map(str, cells))
                message = f"a grid of {grid} is not {plan.axes.spatial} shards, the spatial axis, nor a part of them"
                yield Violation(rule="spatial", where=where, message=message)
        turns = [turn.before for turn in stage.regrid] + [stage.gather_before] * bool(stage.gather_before)
        at = [stage.layers.index(layer) if layer in stage.layers else -1 for layer in turns]
        first = 1 if stage.regrid and not stage.regrid[0].samples else 0
        if at and (at[0] < first or at != sorted(set(at)) or bool(stage.regrid) > bool(stage.spatial)):
            message = f"samples change before {', '.join(turns)}; layers of a stage on shards but its first, in their order"
            yield Violation(rule="spatial", where=where, message=message)


def samples(plan: Plan) -> Iterator[Violation]:
    """Ranks share samples from some layer of the last stage on, each as many."""
    last, (micro, ranks) = len(plan.stages) - 1, (plan.batch.micro, plan.axes.spatial)
    for index, stage in enumerate(plan.stages):
        where = f"stage {index}"
        for turn in stage.regrid:
            if bool(turn.spatial) == turn.samples:
                message = f"before '{turn.before}' samples lie on another grid or are shared: one of the two"
                yield Violation(rule="spatial", where=where, message=message)
        shared = [turn.samples for turn in stage.regrid]
        if not any(shared):
            continue
        if index < last or any(shared[:-1]) or stage.gather_before:
            message = (
                f"shares samples from '{shared_from(stage)}' on; only the last stage does, and to its end"
            )
            yield Violation(rule="spatial", where=where, message=message)
        if micro % ranks:
            message = f"micro-batches of {micro} are not shared evenly by {ranks} ranks, the spatial axis"
            yield Violation(rule="spatial", where=where, message=message)
