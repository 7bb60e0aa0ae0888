from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import BadInput, BadPlan
from planner.plan import StageTimes
from planner.program import lower
from planner.schedule import (
    FAMILIES,
    Action,
    Kind,
    Overlap,
    Schedule,
    check_schedule,
    first_uses,
    generate,
    overlapped,
    parse_orders,
    violations,
    with_recompute,
)
from planner.schedule.families.out_of_order import refined
from planner.simulate import best_overlap, compile, duration_vector, node_ends, period
from planner.simulate.best_gradient_order import Candidate, candidates
from planner.simulate.longest_path import neighbour_hops
from tests.planner.cases import nearest, random_hops, random_overlap, random_times
from tests.planner.event_queue import EventQueue


def text(**options: object) -> str:
    return generate("1f1b", workers=1, micros=2, **options).to_text()  # type: ignore[arg-type]


def test_parts_sum_their_gradients_while_the_backward_goes_on() -> None:
    assert text(parts=2) == "0F0 1F0 1B0 0B0 0F1 1F1 1B1 1SYNC 0B1 0SYNC 1STEP 0STEP"


def test_late_parts_do_the_last_weight_half_after_everything_in_the_order_of_need() -> None:
    assert text(parts=3, late=2) == (
        "0F0 1F0 2F0 2B0 1B0 0B0 0F1 1F1 2F1 2B1 2SYNC 1I1 0I1 0W1 0SYNC 1W1 1SYNC 2STEP 0STEP 1STEP"
    )


def test_a_sum_waits_for_the_launch_of_those_before_it() -> None:
    assert text(parts=2, sums="0 1").endswith("1B1 0B1 0SYNC 1SYNC 0STEP 1STEP")


def test_updates_at_use_stand_before_the_first_forward_of_their_part() -> None:
    assert text(parts=2, updates="at_use").startswith("0STEP 0F0 1STEP 1F0 1B0 0B0 0F1")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_part_and_nothing_late_is_the_schedule_itself(family: str) -> None:
    plain = generate(family, workers=4, micros=9)
    assert generate(family, workers=4, micros=9, parts=1, late=0, updates="at_end") == plain


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_the_same_work_is_done_in_an_order_that_checks_and_lowers(family: str, seed: int) -> None:
    draw = Random(f"{family}/{seed}")
    plain = nearest(family, draw.randint(1, 4), draw.randint(1, 8), draw)
    overlap = random_overlap(plain, draw, updates=draw.choice(("at_end", "at_use")))
    anew = with_recompute(overlapped(plain, overlap), {0} if draw.random() < 0.5 else ())
    hops = random_hops(anew.stages, draw)
    assert violations(anew, hops) == []
    lower(anew, hops, random_times(anew.stages, draw))
    assert work(overlapped(plain, overlap)) == work(plain, overlap.parts)


def work(schedule: Schedule, parts: int = 1) -> Counter[tuple[str, int, int]]:
    """Both halves count as a whole backward does."""
    halves = {Kind.B: "IW"}
    found: Counter[tuple[str, int, int]] = Counter()
    for order in refined(schedule, parts)[1]:
        for a in order:
            found.update((half, a.stage, a.micro) for half in halves.get(a.kind, str(a.kind.value)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_stage_adds_up_its_gradients_in_the_order_of_the_plain_schedule(family: str) -> None:
    plain = generate(family, workers=4, micros=8)
    anew = overlapped(plain, Overlap(parts=1, late=3, updates="at_use"))
    assert contributions(anew) == contributions(plain)


def contributions(schedule: Schedule) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for order in schedule.orders:
        for a in order:
            if a.kind in (Kind.B, Kind.W):
                found.setdefault((a.pipe, a.stage), []).append(a.micro)
    return found


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 4))
def test_steps_that_overlap_are_simulated_as_an_event_queue_plays_them(seed: int, steps: int) -> None:
    draw = Random(seed)
    plain = nearest(draw.choice(sorted(FAMILIES)), draw.randint(1, 3), draw.randint(1, 4), draw)
    schedule = overlapped(plain, random_overlap(plain, draw, updates="at_use"))
    hops, times = random_hops(schedule.stages, draw), random_times(schedule.stages, draw)
    compiled = compile(schedule, hops, update="rolling")
    vector, latest = duration_vector(times, hops), 0
    releases = None
    for _ in range(steps):
        ends = node_ends(compiled, vector, releases)
        releases, latest = ends[compiled.graph.tails], max(latest, int(ends.max()))
    assert EventQueue(schedule, hops, times, steps=steps).run() == latest


def test_a_barrier_and_updates_at_use_contradict_each_other() -> None:
    schedule = generate("1f1b", workers=2, micros=2, updates="at_use")
    check_schedule(schedule, neighbour_hops(2))
    with pytest.raises(BadPlan, match=r"0STEP comes before 0SYNC.*\n.*for update: rolling"):
        check_schedule(schedule, neighbour_hops(2), barrier=True)


def test_an_update_between_the_first_forward_and_the_sum_is_refused() -> None:
    schedule = generate("1f1b", workers=1, micros=2)
    wrong = replace(schedule, orders=parse_orders(["0F0 0STEP 0B0 0F1 0B1 0SYNC"]))
    with pytest.raises(BadPlan, match="0STEP comes before 0SYNC"):
        check_schedule(wrong, ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 0}, "parts is 0.*1 or more"),
        ({"late": -1}, "late is -1.*0 or more"),
        ({"late": True}, "late is True"),
        ({"sums": "0 1"}, "sums names 2 stages.*each of the 4 once"),
        ({"sums": "a"}, "sums is 'a'"),
        ({"updates": "soon"}, "updates is 'soon'.*at_end, at_use"),
        ({"streams": 2}, "streams is 2.*second stream are not built"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        generate("1f1b", workers=2, micros=2, **{"parts": 2, **options})  # type: ignore[arg-type]


def test_a_schedule_that_recomputes_is_cut_before_not_after() -> None:
    schedule = with_recompute(generate("1f1b", workers=2, micros=2), {0})
    with pytest.raises(BadInput, match="recompute after"):
        refined(schedule, 2)


LAYERS = 50


def growing(ratio: float) -> list[StageTimes]:
    """F = I = W = 1,000 a layer; sums in proportion to the depth, `ratio` of the compute in all."""
    whole = sum(range(1, LAYERS + 1))
    sums = [int(ratio * 3000 * LAYERS * size / whole) for size in range(1, LAYERS + 1)]
    one = StageTimes(forward_ns=1000, backward_ns=2000, input_grad_ns=1000, weight_grad_ns=1000)
    return [one.model_copy(update={"sync_ns": ns}) for ns in sums]


def every(times: list[StageTimes], *, update: str = "rolling") -> list[Candidate]:
    one = generate("1f1b", workers=1, micros=1)
    return list(candidates(one, times, (), parts=len(times), update=update))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratio", "fifo", "alone"),
    [(0.36, 1.0, 1.0), (0.72, 1.067, 1.011), (0.85, 1.197, 1.019), (1.07, 1.292, 1.0)],
)
def test_most_of_the_gain_is_priority_and_the_next_forward_the_rest_weight_gradients_that_are_late(
    ratio: float, fifo: float, alone: float
) -> None:
    found = every(growing(ratio))
    best = min(each.ns for each in found)
    plain = next(each.ns for each in found if each.late == 0 and not each.reordered)
    priority = next(each.ns for each in found if each.late == 0 and each.reordered)
    assert plain / best == pytest.approx(fifo, abs=1e-3)
    assert priority / best == pytest.approx(alone, abs=1e-3)


def test_the_order_chosen_is_mostly_the_best_of_all_there_are() -> None:
    """Of few parts, where every k with every order of the sums can be tried."""
    draw = Random(0)
    one, near = generate("1f1b", workers=1, micros=1), []
    for _ in range(12):
        times = [t.model_copy(update={"forward_ns": t.forward_ns + 1}) for t in random_times(4, draw)]
        found = best_overlap(one, times, (), parts=4, update="rolling")
        least = min(
            rolling(overlapped(one, Overlap(parts=4, late=late, sums=sums, updates="at_use")), times)
            for late in range(5)
            for sums in permutations(range(4))
        )
        assert found.ns >= least
        near.append(found.ns / least)
    assert near.count(1.0) >= 10 and max(near) < 1.06


def rolling(schedule: Schedule, times: list[StageTimes]) -> int:
    return period(compile(schedule, (), update="rolling"), duration_vector(times, ())).period_ns


def test_with_a_barrier_parts_alone_hide_sums() -> None:
    times = growing(0.5)
    found = every(times, update="barrier")
    assert [each.late for each in found] == [0]
    whole = sum(t.forward_ns + t.backward_ns + t.sync_ns for t in times)
    assert found[0].ns < 0.8 * whole


def test_the_first_uses_of_a_worker_are_in_the_order_of_its_forwards() -> None:
    order = [Action(Kind.F, 3), Action(Kind.F, 1), Action(Kind.F, 3, 1), Action(Kind.B, 3)]
    assert first_uses(order) == [(0, 3), (0, 1)]
