"""Stages that compute on parts of tensors: heads, columns, vocabulary or sequence, with every conversion explicit.

In come a graph, how its tensors lie (`planner.layout.LocalGraph`) and the group of ranks. The graph is rewritten so
that it computes one rank's parts; results and gradients are those of the whole.
Start at `rewrite.py`, then `ranks.py` (a rank of a plan). Then read `convert.py` and `moves.py` (what a conversion sends), and `kernels.py`.
"""

from runtime.layout.convert import Convert
from runtime.layout.moves import CutGroup
from runtime.layout.ranks import (
    Places,
    TensorParts,
    graph_of_others,
    largest_parts,
    places_of_parts,
    ranks_together,
)
from runtime.layout.rewrite import is_view, localise

__all__ = [
    "Convert",
    "CutGroup",
    "Places",
    "TensorParts",
    "graph_of_others",
    "is_view",
    "largest_parts",
    "localise",
    "places_of_parts",
    "ranks_together",
]
