"""Splits tensors over the ranks of a group: by heads, columns, vocabulary or sequence, for any captured model.

In: the operations of a captured model, the axes of the group, and which modules take which factor.
Out: a `LocalGraph`: how every tensor and parameter lies, and every conversion with what it sends; or a refusal that
names the operation and its module. Nothing here knows torch; `runtime.layout` executes what comes out.
`local_model` does so for a model as data, as a plan says it, and tells what each layer computes, sends and keeps.
Start with `lying.py` (how a tensor lies), `families.py` (the factors of operations) and `conversions.py`. Then read
`propagate.py`.
"""

from planner.layout.conversions import Passage, path
from planner.layout.factor import Along, Factor
from planner.layout.families import FAMILIES
from planner.layout.local_graph import ADDENDS, ALIKE, Conversion, LocalGraph, LocalOperation
from planner.layout.local_model import (
    STATE_PREFIX,
    LayerPart,
    cut_of,
    layer_parts,
    local_model,
    named_in,
    refused_cut,
    share_of,
)
from planner.layout.lying import DimCut, GroupLayout, Mesh, everywhere, parted, positions
from planner.layout.moves import MOVES
from planner.layout.propagate import propagate
from planner.layout.wishes import Wish, granted, unmet

__all__ = [
    "ADDENDS",
    "ALIKE",
    "FAMILIES",
    "MOVES",
    "STATE_PREFIX",
    "Along",
    "Conversion",
    "DimCut",
    "Factor",
    "GroupLayout",
    "LayerPart",
    "LocalGraph",
    "LocalOperation",
    "Mesh",
    "Passage",
    "Wish",
    "cut_of",
    "everywhere",
    "granted",
    "layer_parts",
    "local_model",
    "named_in",
    "parted",
    "path",
    "positions",
    "propagate",
    "refused_cut",
    "share_of",
    "unmet",
]
