"""Splits tensors over the ranks of a group: by heads, columns, vocabulary or sequence, for any captured model.

In: the operations of a captured model, the axes of the group, and which modules take which factor.
Out: a `LocalGraph`: how every tensor and parameter lies, and every conversion with what it sends; or a refusal that
names the operation and its module. Nothing here knows torch; `runtime.layout` executes what comes out.
`local_model` does so for a model as data, as a plan says it.
Start with `lying.py` (how a tensor lies), `families.py` (the factors of operations) and `conversions.py`. Then read
`propagate.py`.
"""

from planner.layout.blocks import Behind, fitting
from planner.layout.conversions import Collective, Passage, path, sent
from planner.layout.factor import Along, Factor, laid
from planner.layout.families import FAMILIES, RING
from planner.layout.local_graph import (
    ADDENDS,
    ALIKE,
    FORGETFUL,
    STATE_PREFIX,
    Conversion,
    Laid,
    LocalGraph,
    LocalOperation,
    gathers_parameter,
    keeps,
)
from planner.layout.local_model import (
    cut_of,
    local_model,
    named_in,
    operations_at,
    refused_cut,
    share_of,
)
from planner.layout.lying import DimCut, GroupLayout, Mesh, everywhere, parted, positions, without_owed
from planner.layout.moves import MOVES, moved, source_of
from planner.layout.propagate import LINEAR, SHAPES_ONLY, STORED, WHOLE, Wishes, propagate
from planner.layout.refusals import as_captured, refuse_parts
from planner.layout.wishes import Wish, granted, of_path, unmet

__all__ = [
    "ADDENDS",
    "ALIKE",
    "FAMILIES",
    "FORGETFUL",
    "LINEAR",
    "MOVES",
    "RING",
    "SHAPES_ONLY",
    "STATE_PREFIX",
    "STORED",
    "WHOLE",
    "Along",
    "Behind",
    "Collective",
    "Conversion",
    "DimCut",
    "Factor",
    "GroupLayout",
    "Laid",
    "LocalGraph",
    "LocalOperation",
    "Mesh",
    "Passage",
    "Wish",
    "Wishes",
    "as_captured",
    "cut_of",
    "everywhere",
    "fitting",
    "gathers_parameter",
    "granted",
    "keeps",
    "laid",
    "local_model",
    "moved",
    "named_in",
    "of_path",
    "operations_at",
    "parted",
    "path",
    "positions",
    "propagate",
    "refuse_parts",
    "refused_cut",
    "sent",
    "share_of",
    "source_of",
    "unmet",
    "without_owed",
]
