"""The configurations of a question: everything discrete about a plan but its cut and its order.

In come a cluster, the batch, and what the user has pinned (`Pins`). Out come all configurations that are possible
(`shapes`), and where the ranks of each stand. Start reading in `configurations.py`. `placement.py` puts ranks on devices,
`spatial_choices.py` lists grids that split a sample, `tensor_parts.py` lists layouts of tensors in parts, and `pins.py`
reads what a user has fixed.
"""

from planner.configurations.configurations import (
    SEARCHED,
    Configuration,
    SplitGroup,
    can_share,
    groups,
    of_group,
    shapes,
)
from planner.configurations.pins import NO_GATHER, Held, Pins, Update, freed, pins, told, with_stages
from planner.configurations.placement import (
    TYPICAL_BYTES,
    Placement,
    PlacementCosts,
    profiled_rate,
    slowness_of,
)
from planner.configurations.spatial_choices import (
    asked,
    check_space,
    choice_of,
    choices,
    grids_of,
    looked_at,
    needs_space,
    none_of,
)
from planner.configurations.tensor_parts import (
    check_parts,
    converting_ns,
    group_on,
    groups_with_cut,
    layouts_looked_at,
    lines_of,
    may_be_whole,
    part_sums,
    with_conversions,
    without_group,
)

__all__ = [
    "NO_GATHER",
    "SEARCHED",
    "TYPICAL_BYTES",
    "Configuration",
    "Held",
    "Pins",
    "Placement",
    "PlacementCosts",
    "SplitGroup",
    "Update",
    "asked",
    "can_share",
    "check_parts",
    "check_space",
    "choice_of",
    "choices",
    "converting_ns",
    "freed",
    "grids_of",
    "group_on",
    "groups",
    "groups_with_cut",
    "layouts_looked_at",
    "lines_of",
    "looked_at",
    "may_be_whole",
    "needs_space",
    "none_of",
    "of_group",
    "part_sums",
    "pins",
    "profiled_rate",
    "shapes",
    "slowness_of",
    "told",
    "with_conversions",
    "with_stages",
    "without_group",
]
