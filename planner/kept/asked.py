"""Reads what a user wants kept: a file of masks, or a share of every pruned weight before there are masks."""

from __future__ import annotations

from pathlib import Path

from planner.errors import BadInput
from planner.kept.counts import WHOLE, KeptEntries
from planner.kept.masks import load_masks
from planner.model import ModelGraph


def shares_asked(given: str | None) -> tuple[float, ...]:
    """Returns the shares that are to be kept; none where nothing is given, or a file.

    Raises: BadInput where there is neither a file of that name nor a share.

    >>> shares_asked("0.2,0.1")
    (0.2, 0.1)
    """
    if given is None or Path(given).is_file():
        return ()
    try:
        shares = tuple(float(share) for share in given.split(","))
    except ValueError:
        shares = (0.0,)
    if not all(0 < share <= 1 for share in shares):
        allowed = "a file of masks, or shares above 0 and at most 1, such as 0.1 or 0.2,0.1"
        raise BadInput(f"'{given}' is neither a file nor a share", where="--kept", allowed=allowed)
    return shares


def kept_asked(graph: ModelGraph, given: str | None) -> KeptEntries:
    """Returns what is kept of a model; everything where nothing is given, or several shares.

    Raises: BadInput where a file has no masks of this model.
    """
    shares = shares_asked(given)
    if given is None or len(shares) > 1:
        return WHOLE
    if shares:
        return KeptEntries.of_share(graph, shares[0])
    masks = load_masks(Path(given)).fitted(graph, given)
    return KeptEntries.of_masks(graph, masks.counts, masks.digest)
