"""Names the ways in which gradients are summed over ranks, and says what each does: rounds, bytes, and over which links.

What a sum takes on a cluster is priced by `named_sum` of `planner.cluster`. In: a name such as `rings 2`, and how many ranks sum over how many cards. Out: whether it is offered there (`offered`),
its rings and trees (`strides`, and `ColourTree` for `colours`), and its time as a line in the bytes (`line_of`), which the runtime's functions of
the same names keep to; `fitted` has the rate of one that was measured. Start with `names.py`, then `shapes.py` (who sends to whom) and `lines.py` (what it takes).
"""

from planner.sums.lines import COLOUR_BYTES, SumLine, SumLoad, fitted, line_of
from planner.sums.names import (
    MOST_PARTS,
    SumKind,
    SumName,
    SumRate,
    SumsByName,
    names_for,
    offered,
    parse,
    today,
)
from planner.sums.shapes import ColourTree, disjoint, inner_twice, strides

__all__ = [
    "COLOUR_BYTES",
    "MOST_PARTS",
    "ColourTree",
    "SumKind",
    "SumLine",
    "SumLoad",
    "SumName",
    "SumRate",
    "SumsByName",
    "disjoint",
    "fitted",
    "inner_twice",
    "line_of",
    "names_for",
    "offered",
    "parse",
    "strides",
    "today",
]
