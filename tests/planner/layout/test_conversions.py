"""Conversions send what the table of the design says, take the shortest path, and have their mirror backward."""

from __future__ import annotations

import itertools
from math import prod

import pytest

from planner.layout import DimCut, GroupLayout, everywhere, parted, path
from planner.layout.lying import Kind

SHAPE = (8, 12, 4)
RANKS = 4
N = prod(SHAPE)
SHARE = N * (RANKS - 1) / RANKS


def lying(kind: str, axis: int = 0, mesh: tuple[int, ...] = (RANKS,)) -> GroupLayout:
    layout = everywhere(SHAPE)
    if kind == "P":
        return GroupLayout(SHAPE, layout.cuts, frozenset({axis}))
    if kind == "R":
        return GroupLayout(SHAPE, layout.cuts, frozenset(), frozenset({axis}))
    if kind == "I":
        return layout
    points = parted(SHAPE[int(kind[1])], mesh[axis])
    assert points is not None
    return layout.with_dim(int(kind[1]), DimCut((axis,), points))


TABLE = {  # section 3.4 of the design: elements sent by a rank, forward and backward
    ("I", "R"): (0, 2 * SHARE),
    ("P", "I"): (2 * SHARE, 0),
    ("S0", "R"): (SHARE, SHARE),
    ("P", "S0"): (SHARE, SHARE),
    ("P", "R"): (2 * SHARE, 2 * SHARE),
    ("S0", "I"): (SHARE, 0),
    ("I", "S0"): (0, SHARE),
    ("R", "S0"): (0, 0),
    ("R", "I"): (0, 0),
    ("I", "P"): (0, 0),
    ("S0", "S1"): (SHARE / RANKS, SHARE / RANKS),
}


@pytest.mark.parametrize(("kinds", "expected"), TABLE.items())
def test_a_conversion_sends_what_the_table_says(
    kinds: tuple[str, str], expected: tuple[float, float]
) -> None:
    (step,) = path(lying(kinds[0]), lying(kinds[1]), (RANKS,), trained=True)
    assert step.sent((RANKS,), trained=True) == expected
    assert step.sent((RANKS,), trained=False) == (expected[0], 0)


def test_every_kind_can_become_every_other_and_ends_where_it_should() -> None:
    kinds = ("I", "R", "P", "S0", "S1")
    for before, after in itertools.product(kinds, repeat=2):
        steps = path(lying(before), lying(after), (RANKS,), trained=True)
        assert (steps[-1].target if steps else lying(before)) == lying(after)
        assert len(steps) == (before != after)


def test_two_axes_are_converted_one_after_the_other_and_inner_cuts_go_first() -> None:
    mesh = (2, 2)
    both = everywhere(SHAPE).with_dim(0, DimCut((0, 1), (0, 2, 4, 6, 8)))
    steps = path(both, everywhere(SHAPE), mesh, trained=True)
    assert [step.axis for step in steps] == [1, 0]
    other = everywhere(SHAPE).with_dim(0, DimCut((1, 0), (0, 2, 4, 6, 8)))
    assert path(both, other, mesh, trained=True)[-1].target == other


def test_the_gradient_of_a_gradient_lies_as_the_tensor() -> None:
    pairs: dict[Kind, Kind] = {"S": "S", "I": "I", "R": "P", "P": "R"}
    for kind in ("I", "R", "P", "S0"):
        layout = lying(kind)
        assert layout.dual().kind(0) == pairs[layout.kind(0)]
        assert layout.dual().dual() == layout


def test_blocks_are_cut_each_and_their_rows_are_named() -> None:
    cut = DimCut((0,), (0, 2, 4), blocks=3)
    assert cut.size == 12
    assert cut.runs(1) == [(2, 4), (6, 8), (10, 12)]
    assert cut.length(1) == 6
