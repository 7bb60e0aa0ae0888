"""Trained parameters as ranks deal them out that share the optimizer's state: one of its holders updates each."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from planner.model import ModelGraph

CutBy = Mapping[str, tuple[int, ...]]  # parameter -> axes of a group that cut it
NOT_CUT: Final[CutBy] = MappingProxyType({})


class Owned(NamedTuple):
    """A trained parameter, which one of its holders updates where these share the state of the optimizer."""

    users: tuple[int, ...]  # positions of its layers, in order
    elements: int
    dtype: str
    axes: tuple[int, ...] = ()  # of a group, that cut it: ranks along them hold different parts


def owned(graph: ModelGraph, kept: Mapping[str, int], cut: CutBy = NOT_CUT) -> tuple[Owned, ...]:
    """Returns the trained parameters that layers use, in the order in which they are dealt out: of their first layers.

    Args: `kept` has the kept entries of pruned parameters, and `cut` those that a group cuts.
    """
    rows = [
        Owned(
            tuple(sorted({graph.index[name] for name in row.users})),
            kept.get(row.name, prod(row.shape)),
            row.dtype,
            cut.get(row.name, ()),
        )
        for row in graph.trained
        if row.users
    ]
    return tuple(sorted(rows, key=lambda row: row.users[0]))
