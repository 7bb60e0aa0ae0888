from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from planner.errors import BadPlan
from planner.schedule import Schedule, check_schedule, generate, violations
from planner.schedule.actions import from_text
from planner.simulate.longest_path import neighbour_hops
from tests.planner.cases import Case, cases

HOPS = neighbour_hops(2)
GOOD = ("0F0 0F1 0B0 0B1 0SYNC 0STEP", "1F0 1B0 1F1 1B1 1SYNC 1STEP")


def two_stages(first: str, second: str) -> Schedule:
    return from_text(f"{first}\n{second}", place=((0, 1),), pipe_of=(0, 0))


def found(schedule: Schedule, **options: object) -> str:
    hops = neighbour_hops(schedule.stages)
    return "\n".join(v.picture(schedule) for v in violations(schedule, hops, **options))  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(case=cases())
def test_nothing_is_wrong_with_what_the_families_make(case: Case) -> None:
    assert violations(case.schedule, case.hops) == []


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (GOOD[0].replace("0F1 ", ""), GOOD[1], "0F1 is missing: micro-batch 1 on stage 0 (worker 0)"),
        (GOOD[0].replace("0B1 ", ""), GOOD[1], "0B1 is missing"),
        (GOOD[0], GOOD[1].replace("1B0", "1I0"), "1W0 is missing"),
        (GOOD[0], GOOD[1].replace("1B0", "1B0 1W0"), "both a whole backward and a half"),
        (GOOD[0].replace("0F1", "0F1 0F1"), GOOD[1], "0F1 happens 2 times"),
        (GOOD[0], GOOD[1].replace("1F0 1B0", "1B0 1F0"), "1F0 comes after 1B0"),
        (GOOD[0].replace("0B1", "0B1 0R1"), GOOD[1], "0R1 comes after 0B1"),
        (GOOD[0].replace("0F1", "0F7"), GOOD[1], "0F7 names no micro-batch"),
        (GOOD[0].replace("0F1", "4F1"), GOOD[1], "4F1 names no stage"),
        (GOOD[0].replace("0F1", "0F1'"), GOOD[1], "0F1' names no stage"),
        (GOOD[0].replace("0F1", "1F1"), GOOD[1].replace("1F1 ", ""), "worker 1 holds the stage"),
        (GOOD[0].replace(" 0SYNC", ""), GOOD[1], "worker 0 never does 0SYNC"),
        (GOOD[0].replace(" 0STEP", ""), GOOD[1], "worker 0 never does 0STEP"),
        (GOOD[0].replace("0B1 0SYNC", "0SYNC 0B1"), GOOD[1], "0SYNC comes before the last B"),
        (GOOD[0].replace("0SYNC 0STEP", "0STEP 0SYNC"), GOOD[1], "0STEP comes before 0SYNC"),
        (
            GOOD[0].replace("0B1", "0I1").replace("0SYNC", "0SYNC 0W1"),
            GOOD[1],
            "0SYNC comes before the last W",
        ),
        (GOOD[0], GOOD[1].replace("1F0 1B0 1F1 1B1", "1F1 1B1 1F0 1B0"), ""),
        ("0F0 0B0 0F1 0B1 0SYNC 0STEP", "1F1 1B1 1F0 1B0 1SYNC 1STEP", "the orders deadlock"),
    ],
)
def test_what_is_wrong_is_named(first: str, second: str, says: str) -> None:
    assert found(two_stages(*GOOD)) == ""
    text = found(two_stages(first, second))
    assert (says in text) if says else text == ""


def test_a_deadlock_is_drawn_with_its_culprits() -> None:
    text = found(two_stages("0F0 0B0 0F1 0B1 0SYNC 0STEP", "1F1 1B1 1F0 1B0 1SYNC 1STEP"))
    assert "worker 0: 0F0 [0B0] 0F1" in text
    assert "<-- here: waits for message grad1>0.0" in text


def test_a_broken_placement_is_named_before_anything_else() -> None:
    good = two_stages(*GOOD)
    assert "placed on worker 7" in found(replace(good, place=((0, 7),)))
    assert "different length" in found(replace(good, place=((0, 1), (0,))))
    assert "given to pipe 3" in found(replace(good, pipe_of=(0, 3)))
    assert "travels in pipe 1" in found(replace(generate("chimera", workers=2, micros=2), pipe_of=(1, 1)))


def test_members_of_a_communicator_sum_in_one_order() -> None:
    schedule = from_text(
        "0F0 0B0 1F1' 1B1' 0SYNC 1SYNC' 0STEP 1STEP'\n1F0 1B0 0F1' 0B1' 1SYNC 0SYNC' 1STEP 0STEP'",
        place=((0, 1), (1, 0)),
        pipe_of=(0, 1),
    )
    text = found(schedule)
    assert "workers 0 and 1 sum gradients of stages in different orders: 0, 1 and 1, 0" in text
    assert "[1SYNC]" in text
    assert "<-- here: worker 0 sums 0 here" in text


def test_a_tied_sum_is_launched_by_the_last_of_its_stages_on_each_worker() -> None:
    schedule = from_text(
        "0F0 1F0 2F0 2B0 1B0 0B0 0SYNC 1SYNC 2SYNC 0STEP 1STEP 2STEP\n"
        "0F1' 1F1' 1B1' 0B1' 0SYNC' 1SYNC' 0STEP' 1STEP'\n"
        "2F1' 2B1' 2SYNC' 2STEP'",
        place=((0, 0, 0), (1, 1, 2)),
        pipe_of=(0, 1),
    )
    hops = neighbour_hops(3)
    assert violations(schedule, hops) == []
    assert violations(schedule, hops, sums=[(0,), (1, 2)]) == []
    (found,) = violations(schedule, hops, sums=[(0, 2), (1,)])
    assert str(found) == "workers 0 and 1 sum gradients of stages in different orders: 1, 0+2 and 0+2, 1"
    assert "[0SYNC']" in found.picture(schedule)


def test_a_cap_on_what_is_in_flight_is_kept() -> None:
    schedule = generate("1f1b", workers=4, micros=8)
    caps = {(0, stage): 4 - stage for stage in range(4)}
    assert violations(schedule, neighbour_hops(4), caps=caps) == []
    text = found(schedule, caps={**caps, (0, 1): 2})
    assert "1F2 is number 3 in flight" in text
    assert "<-- here: at most 2" in text


def test_a_long_order_is_drawn_around_its_culprit() -> None:
    schedule = generate("1f1b", workers=2, micros=40)
    spoiled = replace(
        schedule, orders=(schedule.orders[0], tuple(a for a in schedule.orders[1] if str(a) != "1B20"))
    )
    text = found(spoiled)
    assert "[1F20]" in text
    assert "... " in text
    assert len(max(text.splitlines(), key=len)) < 200


def test_a_bad_schedule_raises_with_the_picture() -> None:
    with pytest.raises(BadPlan, match="0F1 is missing"):
        check_schedule(two_stages(GOOD[0].replace("0F1 ", ""), GOOD[1]), HOPS)
    assert check_schedule(two_stages(*GOOD), HOPS).micros == 2
