"""A rank is assembled from a plan and a captured model."""

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
