from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner.errors import BadInput
from planner.milp.search.relist import costs_of
from planner.plan import StageTimes
from planner.schedule import (
    FAMILIES,
    Costs,
    Kind,
    Limits,
    Schedule,
    generate,
    parse_orders,
    relistings,
    updates_at_use,
    with_recompute,
)
from planner.schedule.listing.frozen import fits, limits_of, span, weights
from planner.schedule.listing.task import nominal
from planner.simulate import compile, duration_vector
from planner.simulate.longest_path import makespan, neighbour_hops
from tests.planner.schedule import slots

DRAW = random.Random(11)


def uneven(stages: int) -> Costs:
    def row() -> tuple[int, ...]:
        return tuple(DRAW.randint(5, 15) for _ in range(stages))

    inputs, weights = row(), row()
    edges = [edge for s in range(stages - 1) for edge in ((s, s + 1), (s + 1, s))]
    return Costs(
        forward=row(),
        backward=tuple(i + w for i, w in zip(inputs, weights, strict=True)),
        input_grad=inputs,
        weight_grad=weights,
        recompute=row(),
        hops={edge: DRAW.randint(0, 4) for edge in edges},
    )


def played(schedule: Schedule, costs: Costs) -> int:
    return slots.span(schedule, lambda a: costs.of(a.kind)[a.stage], costs.hops)


@pytest.mark.parametrize("family", FAMILIES)
def test_listed_anew_it_is_never_longer_and_holds_no_more(family: str) -> None:
    for workers, micros in [(2, 5), (4, 8), (4, 11), (8, 8)]:
        schedule = generate(family, workers=workers, micros=micros)
        costs = uneven(schedule.stages)
        anew = relistings(schedule, costs)[0][1]
        slots.assert_whole(anew)
        assert played(anew, costs) <= played(schedule, costs)
        assert all(b <= a for a, b in zip(slots.peaks(schedule), slots.peaks(anew), strict=True))


def test_candidates_are_different_sorted_and_timed_as_the_reference_times_them() -> None:
    schedule = generate("zb-v", workers=4, micros=8)
    costs = uneven(8)
    candidates = relistings(schedule, costs)
    spans = [time for time, _ in candidates]
    assert spans == sorted(spans)
    assert len({c.orders for _, c in candidates}) == len(candidates) > 3
    assert spans == [played(c, costs) for _, c in candidates]
    assert schedule in [c for _, c in candidates]


def test_uneven_stages_gain_where_the_nominal_order_fits_them_badly() -> None:
    """Light stages at one end: their workers had better run ahead than keep the nominal turn."""
    schedule = generate("chimera-zb", workers=4, micros=8)
    light = (3, 3, 9, 9)
    costs = Costs(forward=light, backward=tuple(2 * t for t in light), input_grad=light, weight_grad=light)
    assert relistings(schedule, costs)[0][0] < 0.95 * span(schedule, costs)


def test_a_stage_that_was_recomputed_still_is_and_its_time_counts() -> None:
    schedule = with_recompute(generate("chimera-zb", workers=4, micros=6), [1, 3])
    costs = uneven(4)
    for time, candidate in relistings(schedule, costs):
        again = [a for order in candidate.orders for a in order if a.kind is Kind.R]
        assert {a.stage for a in again} == {1, 3}
        assert len(again) == 12
        assert time == played(candidate, costs)
    assert span(schedule, costs) > span(schedule, replace(costs, recompute=()))


@pytest.mark.parametrize("family", ["1f1b", "chimera", "zb-v"])
def test_recomputation_is_listed_as_part_of_the_backward(family: str) -> None:
    plain = generate(family, workers=4, micros=7)
    costs = uneven(plain.stages)
    extra = [cost if stage in (0, 2) else 0 for stage, cost in enumerate(costs.recompute)]
    merged = replace(
        costs,
        backward=tuple(b + r for b, r in zip(costs.backward, extra, strict=True)),
        input_grad=tuple(i + r for i, r in zip(costs.input_grad, extra, strict=True)),
    )
    listed_so = {with_recompute(s, [0, 2]).orders for _, s in relistings(plain, merged)}
    assert {s.orders for _, s in relistings(with_recompute(plain, [0, 2]), costs)} == listed_so


def test_given_limits_hold_for_every_candidate_and_drop_the_order_that_breaks_them() -> None:
    schedule = generate("zb-h2", workers=4, micros=8)
    limits = Limits(memory=(4, 4, 4, 4))
    assert not fits(schedule, limits)
    candidates = [c for _, c in relistings(schedule, nominal(4), limits)]
    assert schedule not in candidates
    assert all(max(slots.peaks(c)) <= 4 for c in candidates)


def test_limits_that_nothing_fits_into_are_refused() -> None:
    with pytest.raises(BadInput, match=r"the caps deadlock"):
        relistings(generate("1f1b", workers=2, micros=4), nominal(2), Limits(memory=(1, 0)))


def test_costs_of_another_depth_are_refused() -> None:
    with pytest.raises(BadInput, match=r"costs of 3 stages.*2, as the placement"):
        relistings(generate("1f1b", workers=2, micros=4), nominal(3))


def test_the_limits_of_a_schedule_are_what_it_holds_at_most_by_weight() -> None:
    schedule = generate("1f1b", workers=3, micros=6)
    assert limits_of(schedule).memory == (3, 2, 1)
    assert limits_of(schedule, keep=(5, 7, 9)).memory == (15, 14, 9)
    assert fits(schedule, limits_of(schedule, keep=(5, 7, 9)))
    assert not fits(schedule, Limits(memory=(15, 13, 9), keep=(5, 7, 9)))
    assert not fits(schedule, Limits(flight=((2, 2, 1),)))
    assert fits(schedule, Limits(ahead=((3, 2, 1),)))


def test_what_is_held_for_a_weight_gradient_weighs_until_then() -> None:
    schedule = generate("zb-h1", workers=2, micros=2)  # F F I W I W and F I F I W W
    assert weights(schedule, Limits(keep=(10, 10), held=(0, 0))) == [20, 10]
    assert weights(schedule, Limits(keep=(10, 10), held=(10, 10))) == [20, 20]
    assert weights(schedule, Limits(keep=(10, 10), held=(10, 15)))[1] == 30


def test_orders_that_wait_for_each_other_have_no_span() -> None:
    schedule = generate("1f1b", workers=2, micros=2)
    crossed = replace(schedule, orders=parse_orders(["0B0 0F0 0F1 0B1", "1F0 1B0 1F1 1B1"]))
    with pytest.raises(BadInput, match=r"the orders wait for each other"):
        span(crossed, nominal(2))


def test_listing_from_a_plans_numbers_agrees_with_the_simulator() -> None:
    schedule = generate("chimera-zb", workers=4, micros=7)
    drawn = uneven(4)
    times = [
        StageTimes(forward_ns=f, backward_ns=b, input_grad_ns=i, weight_grad_ns=w)
        for f, b, i, w in zip(drawn.forward, drawn.backward, drawn.input_grad, drawn.weight_grad, strict=True)
    ]
    hops = neighbour_hops(4, act_ns=3, grad_ns=2)
    costs = costs_of(times, hops)
    assert costs.hops == {(0, 1): 3, (1, 2): 3, (2, 3): 3, (1, 0): 2, (2, 1): 2, (3, 2): 2}
    for time, candidate in relistings(schedule, costs):
        compiled = compile(candidate, hops, queueing="none")
        assert time == makespan(compiled, duration_vector(times, hops))


def test_updates_at_use_and_the_order_of_sums_stay() -> None:
    schedule = generate("zb-h1", workers=2, micros=4, parts=2, sums="2 0 3 1", updates="at_use")
    for _, found in relistings(schedule, nominal(4, 3)):
        assert updates_at_use(found)
        syncs = [a.stage for order in found.orders for a in order if a.kind is Kind.SYNC]
        assert syncs == [0, 1, 2, 3]
