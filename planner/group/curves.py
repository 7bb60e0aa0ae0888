"""How long a layer takes for a share of its work, from the micro-batches that were profiled of it.

A rank with a share of a layer takes as long as the whole layer does on that share of the samples: between two
micro-batches that were profiled the time lies on the line between them. Below the smallest one, what the line says of
no samples at all is what every call takes, and the rest shrinks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from planner.profile import CostKey, Profile

Curve = tuple[tuple[float, float], ...]  # (share of the work, time) in ascending order; share 1 is among them
_NOISE = 1e-9
TIMES = ("forward", "backward", "input_grad", "weight_grad")


def part_of(curve: Curve, share: float) -> float:
    """Returns the time of a share of the work, at most that of all of it.

    Args: `share` is above 0, and at most 1.
    """
    shares = [x for x, _ in curve]
    at, whole = bisect_left(shares, share - _NOISE), curve[bisect_left(shares, 1.0 - _NOISE)][1]
    right, late = curve[at]
    if abs(right - share) < _NOISE:
        return min(late, whole)
    left, early = curve[at - 1] if at else (0.0, _start(curve))
    return min(early + (late - early) * (share - left) / (right - left), whole)


def _start(curve: Curve) -> float:
    """Returns what remains where the work shrinks to nothing; nothing where only one time is known."""
    if len(curve) < 2:
        return 0.0
    (left, early), (right, late) = curve[:2]
    return min(max(early - (late - early) * left / (right - left), 0.0), early)


def curves_of(profile: Profile, layer: str, setting: CostKey) -> dict[str, Curve]:
    """Returns the times of a layer by the share of its work, for each pass.

    Args: `setting` is of the whole micro-batch; others count where the profile has them.
    """
    key = setting._replace(signature=profile.graph.layer[layer].signature)
    same = sorted(
        x.micro for x in profile.settings if x._replace(micro=0) == setting._replace(micro=0, signature="")
    )
    rows = [(micro, profile.costs.get(key._replace(micro=micro))) for micro in same]
    return {
        name: tuple((micro / key.micro, getattr(row, name).median) for micro, row in rows if row is not None)
        for name in TIMES
    }


def mixed(curve: Curve, shares: Sequence[tuple[float, float]]) -> float:
    """Returns the time of a layer whose operations each have a share of their work.

    Args: `shares` has the weight of each operation in the layer and its share; weights add up to 1.
    """
    return sum(weight * part_of(curve, share) for weight, share in shares)
