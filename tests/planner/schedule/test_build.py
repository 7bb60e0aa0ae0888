from __future__ import annotations

from itertools import pairwise

import pytest

from planner.errors import BadInput
from planner.schedule import FAMILIES, Action, Kind, generate, with_recompute


def test_the_gradient_sum_follows_the_last_gradient_at_once() -> None:
    schedule = generate("zb-h1", workers=4, micros=6)
    for stage, order in enumerate(schedule.orders):
        at = order.index(Action(Kind.SYNC, stage))
        assert order[at - 1] == Action(Kind.W, stage, 5)
        assert order[at + 1] == Action(Kind.STEP, stage)


def test_an_edge_stage_of_chimera_is_summed_while_the_worker_still_computes() -> None:
    order = generate("chimera", workers=4, micros=4).orders[0]
    at = order.index(Action(Kind.SYNC, 3, 0, 1))
    assert order[at - 1] == Action(Kind.B, 3, 3, 1)
    assert [a.kind for a in order[at:]].count(Kind.B) == 2


@pytest.mark.parametrize("micros", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize(("workers", "pairs"), [(2, 1), (4, 1), (8, 1), (8, 2), (8, 4)])
@pytest.mark.parametrize("family", ["chimera", "chimera-zb"])
def test_holders_of_the_same_stages_sum_them_in_the_same_order(
    family: str, workers: int, pairs: int, micros: int
) -> None:
    schedule = generate(family, workers=workers, micros=micros, pairs=pairs)
    sums = [[a.stage for a in order if a.kind is Kind.SYNC] for order in schedule.orders]
    for one in sums:
        for other in sums:
            shared = set(one) & set(other)
            assert [s for s in one if s in shared] == [s for s in other if s in shared]


def test_recomputation_stands_right_before_the_backward_of_the_stages_asked_for() -> None:
    for family in FAMILIES:
        schedule = with_recompute(generate(family, workers=4, micros=8), [1, 2])
        for order in schedule.orders:
            for before, action in pairwise(order):
                if action.kind in (Kind.B, Kind.I):
                    again = action._replace(kind=Kind.R)
                    assert (before == again) == (action.stage in (1, 2))
        assert sum(a.kind is Kind.R for order in schedule.orders for a in order) == 16


def test_recomputing_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no stage 4 to recompute.*0 to 3"):
        with_recompute(generate("1f1b", workers=4, micros=2), [1, 4])
