"""Every rule of `planner.layout`, drawn by seed: on parts an operation gives what it gives whole, or is refused."""

from __future__ import annotations

from collections import Counter

import pytest

from planner.layout import FAMILIES, MOVES, DimCut, everywhere
from planner.spatial import NoRule
from runtime.layout import moves
from tests.draws import part
from tests.runtime.layout.missing_rules import missing
from tests.runtime.layout.one_operation import Case, differences
from tests.runtime.layout.operation_cases import ATEN, SIZES, Trial, cases, outcome, trials

ONE_AXIS, TWO_AXES = 300, 60  # rows that are drawn
SETTLED = ("exact", "refused", "impossible")


@pytest.mark.parametrize(("axes", "count"), [(1, ONE_AXIS), (2, TWO_AXES)])
def test_an_operation_on_parts_is_exact_or_refused(axes: int, count: int) -> None:
    rows = [trial for trial in trials() if len(trial.mesh) == axes]
    found = {trial: outcome(trial) for trial in part(rows, count)}
    assert {trial: said for trial, said in found.items() if said not in SETTLED} == {}
    counted = Counter(found.values())
    assert counted["exact"] > 0.6 * len(found), counted


@pytest.mark.parametrize("name", ["view together", "flatten"])
def test_two_cuts_that_come_to_lie_along_one_dimension_are_not_taken_for_one(name: str) -> None:
    first = 1 if name == "flatten" else 0
    for kinds in ((f"S{first}", f"S{first + 1}"), (f"S{first + 1}", f"S{first}")):
        assert outcome(Trial("even", name, (2, 2), ("", ""), kinds)) == "exact"


def test_the_table_has_every_family_of_weight_and_every_move() -> None:
    has = {case.graph()[2][-1].operation for case in cases(*SIZES["even"]).values()} | {
        x.operation for case in cases(*SIZES["even"]).values() for x in case.graph()[2]
    }
    weighted = {"aten.linear", "aten.addmm", "aten.embedding", "aten.conv2d", "aten.cross_entropy_loss"}
    assert weighted <= has
    assert len(has & set(FAMILIES)) > 25 and len(has & set(MOVES)) > 10


def test_what_holds_without_a_rule_is_known() -> None:
    assert missing() == [
        "max pool: x by 2 gives 2",
        "max pool: x by 3 gives 3",
        "mean pool: x by 2 gives 2",
        "mean pool: x by 3 gives 3",
        "mean pool: x by 4 gives 4",
        "attention: v by 3 gives 3",
        "attention in groups: v by 3 gives 3",
        "no rule: diff: x by 0 gives 0",
        "no rule: diff: x by 2 gives 2",
    ]


def test_an_operation_without_a_rule_is_refused_by_name_on_parts() -> None:
    case = Case(ATEN.diff.default, ("y", 1, 1), {"y": (4, 6)})
    cut = everywhere((4, 6)).with_dim(0, DimCut((0,), (0, 2, 4)))
    with pytest.raises(NoRule, match=r"layer: aten.diff on parts of tensors: it has no rule .*before layer"):
        differences(case, (2,), ("",), {"y": cut})


def test_attention_that_draws_inside_its_kernel_is_refused_on_parts() -> None:
    shape = (2, 4, 6, 8)
    args = ("q", "k", "v", None, 0.1)
    case = Case(ATEN.scaled_dot_product_attention.default, args, dict.fromkeys("qkv", shape))
    cut = everywhere(shape).with_dim(1, DimCut((0,), (0, 2, 4)))
    with pytest.raises(NoRule, match=r"draws the dropout of attention inside .*a dropout of 0"):
        differences(case, (2,), ("",), {"q": cut})


def test_more_ranks_than_rows_are_refused_with_what_would_do() -> None:
    case = Case(ATEN.linear.default, ("x", "w"), {"x": (2, 3)}, {"w": (2, 3)})
    with pytest.raises(NoRule, match=r"2 of 'out' for 4 ranks .*up to 2 ranks"):
        differences(case, (4,), ("out",))


def test_a_wrong_collective_would_be_seen() -> None:
    """Breaks one gradient on purpose: the table must not pass by accident."""
    case = Case(ATEN.linear.default, ("x", "w"), {"x": (2, 6, 8)}, {"w": (4, 8)})
    good = moves._MOVES["reduce"]
    moves._MOVES["reduce"] = lambda x, *_: x
    try:
        assert max(differences(case, (2,), ("out",))) > 1e-3
    finally:
        moves._MOVES["reduce"] = good
    assert max(differences(case, (2,), ("out",))) < 1e-12
