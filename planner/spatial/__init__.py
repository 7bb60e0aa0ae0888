"""Splits samples over ranks in integers: which part of each input a shard needs, whose it is, and what that costs.

In: operations of a captured model as integers (`Operation`), and a grid such as (2, 2).
Out: a `Segment`, with the layout of every tensor and a `Step` for each operation. `price` gives the share of work
and the bytes sent of each layer. Nothing here knows torch; `runtime.spatial` has a kernel for each rule.
Start with `layout.py` (how a tensor lies on a grid), `rule.py` (what a rule is asked and answers) and `rules/`.
Then read `segment.py` (a whole model) and `traffic.py` (its price).
"""

from planner.spatial.alignment import alignment
from planner.spatial.layout import (
    Cut,
    Layout,
    check_grid,
    coordinates,
    entry,
    middle_of,
    neighbours,
    rank_at,
    whole,
)
from planner.spatial.need import WAYS_OUT, Need, Reach, local_shape
from planner.spatial.operation import (
    AS_CAPTURED,
    GETITEM,
    INPUT,
    NONE,
    OTHERWISE,
    STATE,
    TARGET,
    Given,
    Operation,
    Ref,
    from_text,
    read_operations,
    to_text,
)
from planner.spatial.regrid import SLIDING, SPACE, Grid, Grids, Resplit, slides
from planner.spatial.rows_needed import Fetch, RowRun, take
from planner.spatial.rule import HERE, Box, Call, NoRule, Rows, Step, call_of, laid, named
from planner.spatial.rules.pointwise import AFTER, BINARY, POINTWISE, UNARY
from planner.spatial.rules.reductions import LOSSES
from planner.spatial.rules.resample import COUNTS, CUBIC, adaptive_rows
from planner.spatial.rules.reshapes import RESHAPES
from planner.spatial.rules.rows import ROWS
from planner.spatial.rules.table import RULES
from planner.spatial.rules.windows import divisors, front_padding
from planner.spatial.sample_shares import grown, wider
from planner.spatial.segment import Placed, Segment, cut_model, with_targets
from planner.spatial.traffic import Cost, Price, Traffic, element_bytes, price

__all__ = [
    "AFTER",
    "AS_CAPTURED",
    "BINARY",
    "COUNTS",
    "CUBIC",
    "GETITEM",
    "HERE",
    "INPUT",
    "LOSSES",
    "NONE",
    "OTHERWISE",
    "POINTWISE",
    "RESHAPES",
    "ROWS",
    "RULES",
    "SLIDING",
    "SPACE",
    "STATE",
    "TARGET",
    "UNARY",
    "WAYS_OUT",
    "Box",
    "Call",
    "Cost",
    "Cut",
    "Fetch",
    "Given",
    "Grid",
    "Grids",
    "Layout",
    "Need",
    "NoRule",
    "Operation",
    "Placed",
    "Price",
    "Reach",
    "Ref",
    "Resplit",
    "RowRun",
    "Rows",
    "Segment",
    "Step",
    "Traffic",
    "adaptive_rows",
    "alignment",
    "call_of",
    "check_grid",
    "coordinates",
    "cut_model",
    "divisors",
    "element_bytes",
    "entry",
    "from_text",
    "front_padding",
    "grown",
    "laid",
    "local_shape",
    "middle_of",
    "named",
    "neighbours",
    "price",
    "rank_at",
    "read_operations",
    "slides",
    "take",
    "to_text",
    "whole",
    "wider",
    "with_targets",
]
