"""One rank of a run, assembled from a plan and a captured model.

In: the plan, `Captured`, the `World` of ranks, and the tensors of a checkpoint. Out: a `Rank` that runs
steps, evaluates, and says what it writes to a checkpoint. `sleeping` makes a rank whose stages only sleep.
Start reading in `assemble.py`; `parts.py` has its parts, `rank.py` the result.
"""

from runtime.rank.assemble import assemble
from runtime.rank.parts import RankOptions, RankParts, check_supported
from runtime.rank.rank import Rank
from runtime.rank.sleeping import sleeping

__all__ = [
    "Rank",
    "RankOptions",
    "RankParts",
    "assemble",
    "check_supported",
    "sleeping",
]
