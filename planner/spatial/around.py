"""Cuts samples again behind an operation that has no rule, and says which operations slide over space.

What follows such an operation is computed alike by all ranks, until an operation slides over it: that one takes most
of the time of a network. Each rank has the whole tensor then, so nothing is sent; the gradients of parts are gathered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from planner.model import ModelGraph
from planner.spatial.layout import Layout, entry
from planner.spatial.operation import Operation
from planner.spatial.regrid import Grid, Resplit, mesh_of
from planner.spatial.rule import NoRule, call_of
from planner.spatial.rules import reductions, resample, windows
from planner.spatial.rules.table import rule

SLIDING: Final = frozenset((*windows.WINDOWS, *resample.RESAMPLES, *reductions.SPATIAL_NORMS))


def cut_again(
    operation: Operation,
    reads: Mapping[str, Layout],
    around: Collection[str],
    lying: Mapping[str, Grid],
    grid: Grid,
    ranks: int,
) -> dict[str, Resplit]:
    """Returns the move that cuts a tensor again behind an operation without a rule, where the next one slides over it.

    Args: `around` has the tensors that were gathered for such an operation, or made of them; `grid` is the one of all
        `ranks` at the operation.
    Returns: nothing where the rule of the operation does not take the parts.
    """
    name = next(iter(operation.reads()), "")
    if operation.operation not in SLIDING or name not in around:
        return {}
    target = entry(reads[name].shape, grid)
    try:
        rule(call_of(operation, {**reads, name: target}))
    except NoRule:
        return {}
    made = Resplit(reads[name], lying[name], target, mesh_of(grid, ranks))
    return {} if target.whole else {name: made}


def slides(graph: ModelGraph) -> bool:
    """Returns whether some operation of a model slides over space, so that samples may be cut there."""
    names = [f'"operation":"{name}"' for name in SLIDING]
    return any(name in line for line in graph.operations for name in names)
