"""Names the ways in which gradients are summed over ranks, and says what each does: rounds, bytes, and over which links.

In: a name such as `rings 2`, and how many ranks sum over how many cards. Out: whether it is offered there (`offered`),
its rings and trees (`strides`, `Tree`), and its time as lines in the bytes (`lines`), which the runtime's functions of
the same names keep to. Start with `names.py`, then `shapes.py` (who sends to whom) and `lines.py` (what it takes).
"""

from planner.sums.lines import COLOUR_PIECE, Line, Load, lines, terms
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
from planner.sums.shapes import Tree, disjoint, inner_twice, strides

__all__ = [
    "COLOUR_PIECE",
    "MOST_PARTS",
    "Line",
    "Load",
    "SumKind",
    "SumName",
    "SumRate",
    "SumsByName",
    "Tree",
    "disjoint",
    "inner_twice",
    "lines",
    "names_for",
    "offered",
    "parse",
    "strides",
    "terms",
    "today",
]
