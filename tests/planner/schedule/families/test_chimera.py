from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from planner.schedule import Kind, Schedule, generate
from tests.planner.schedule.slots import assert_whole, compute, peaks, span, thirds

GRID = [(workers, pairs) for workers in range(2, 33, 2) for pairs in (1, 2, 4) if workers // 2 % pairs == 0]


def numbers(schedule: Schedule, worker: int) -> str:
    return " ".join(str(action.micro) for action in compute(schedule)[worker])


def test_the_first_workers_orders_are_those_of_the_papers_figures() -> None:
    assert numbers(generate("chimera", workers=4, micros=4), 0) == "0 1 2 2 3 3 0 1"
    assert numbers(generate("chimera", workers=8, micros=8, pairs=2), 0) == "0 1 6 2 7 3 4 4 5 5 2 6 3 7 0 1"
    assert numbers(generate("chimera", workers=4, micros=8), 0).endswith("0 4 1 5 6 6 7 7 4 5")


def test_every_order_is_that_of_the_slots_and_no_two_actions_fall_on_one_slot() -> None:
    for workers, pairs in GRID:
        for micros in (1, workers - 1, workers, 2 * workers, 4 * workers):
            schedule = generate("chimera", workers=workers, micros=micros, pairs=pairs)
            start = _starts(schedule)
            for order in compute(schedule):
                slots = [
                    start[a.micro] + (a.stage if a.kind is Kind.F else 2 * workers - 1 - a.stage)
                    for a in order
                ]
                assert slots == sorted(set(slots))


def _starts(schedule: Schedule) -> list[int]:
    """2m + 2Dk for every micro-batch, m its place among those of its unit k and pipe."""
    seen: Counter[tuple[int, int]] = Counter()
    starts = []
    for micro, pipe in enumerate(schedule.pipe_of):
        unit = micro // schedule.workers
        starts.append(2 * schedule.workers * unit + 2 * seen[unit, pipe])
        seen[unit, pipe] += 1
    return starts


def test_one_unit_leaves_the_published_bubbles_and_holds_the_published_activations() -> None:
    for workers, pairs in GRID:
        schedule = generate("chimera", workers=workers, micros=workers, pairs=pairs)
        assert span(schedule) == 2 * workers + workers // pairs - 2
        held = peaks(schedule)
        assert (min(held), max(held)) == (workers - workers // (2 * pairs) + 1, workers)


def test_units_follow_each_other_without_a_further_bubble_where_a_backward_costs_a_forward() -> None:
    for workers, pairs in GRID:
        for units in (2, 3):
            schedule = generate("chimera", workers=workers, micros=units * workers, pairs=pairs)
            assert span(schedule) == 2 * units * workers + workers // pairs - 2
            assert max(peaks(schedule)) == workers


def test_no_worker_ever_holds_more_than_as_many_micro_batches_as_there_are_workers() -> None:
    for workers, pairs in GRID[:14:2]:
        for micros in range(1, 4 * workers, 1 + workers // 2):
            schedule = generate("chimera", workers=workers, micros=micros, pairs=pairs)
            assert_whole(schedule)
            assert max(peaks(schedule)) <= workers


def test_where_a_backward_costs_two_forwards_units_leave_gaps_of_the_known_length() -> None:
    for workers, pairs in GRID:
        per_unit = workers + workers // pairs - 2
        for units in (1, 2, 4):
            schedule = generate("chimera", workers=workers, micros=units * workers, pairs=pairs)
            forwards = workers + (units - 1) * (workers - workers // pairs + 2)
            assert span(schedule, thirds) == forwards + 2 * units * per_unit


@pytest.mark.parametrize(("workers", "pairs"), [(2, 1), (4, 1), (6, 1), (8, 1), (8, 2), (12, 3)])
def test_a_last_unit_that_is_not_full_is_never_longer_than_a_full_one(workers: int, pairs: int) -> None:
    full = [
        span(generate("chimera", workers=workers, micros=units * workers, pairs=pairs), thirds)
        for units in range(1, 5)
    ]
    for micros in range(workers + 1, 4 * workers):
        schedule = generate("chimera", workers=workers, micros=micros, pairs=pairs)
        assert span(schedule, thirds) <= full[-(-micros // workers) - 1]
        assert max(peaks(schedule)) <= workers


def test_one_micro_batch_more_than_a_unit_is_listed_into_the_gaps() -> None:
    assert span(generate("chimera", workers=4, micros=5), thirds) == 21  # 25 by the slots


@pytest.mark.parametrize(
    ("workers", "micros", "slots"),
    [(8, 16, 66), (8, 32, 114), (8, 64, 210), (16, 32, 142), (16, 64, 238), (16, 128, 430)],
)
def test_forward_doubling_closes_the_gaps_between_units(workers: int, micros: int, slots: int) -> None:
    schedule = generate("chimera", workers=workers, micros=micros, concat="doubling")
    assert span(schedule, thirds) == slots


@pytest.mark.parametrize("concat", ["doubling", "halving"])
def test_doubled_forwards_stand_back_to_back_and_every_micro_batch_is_carried_once(concat: str) -> None:
    for workers, pairs in [(2, 1), (4, 1), (6, 3), (8, 2), (10, 1)]:
        for micros in (1, 3, 16, 33):
            schedule = generate("chimera", workers=workers, micros=micros, pairs=pairs, concat=concat)
            assert_whole(schedule)
            span(schedule, thirds)
            for order in compute(schedule):
                for before, action in pairwise(order):
                    mate = action._replace(micro=action.micro - 1)
                    if action.kind is Kind.F and _mates(schedule, action.micro):
                        assert before == mate


def _mates(schedule: Schedule, micro: int) -> bool:
    """Whether a micro-batch is the second of a pair: turns of two a pipe, numbered pipe by pipe."""
    turn = 2 * schedule.pipes
    first = micro // turn * turn
    whole = first + turn <= schedule.micros
    return whole and (micro - first) % 2 == 1


def test_halving_is_doubling_over_halves_and_says_so() -> None:
    doubled, halved = (generate("chimera", workers=8, micros=32, concat=c) for c in ("doubling", "halving"))
    assert doubled.orders == halved.orders
    assert halved.settings["concat"] == "halving"


@pytest.mark.parametrize(("workers", "pairs"), [(4, 1), (8, 1), (8, 2), (16, 2), (32, 4)])
def test_a_wave_on_fewer_workers_with_replicas_takes_the_same_time_and_memory(
    workers: int, pairs: int
) -> None:
    for units in (1, 2, 3):
        chimera = generate("chimera", workers=workers, micros=units * workers, pairs=pairs)
        wave = generate(
            "wave", workers=workers // (2 * pairs), micros=units * workers // (2 * pairs), chunks=2 * pairs
        )
        assert span(chimera, thirds) == span(wave, thirds)
        assert sorted(set(peaks(chimera))) == sorted(set(peaks(wave)))


@pytest.mark.parametrize(
    ("workers", "micros", "chimera_slots", "folded_slots"), [(4, 5, 16, 19), (8, 9, 30, 33)]
)
def test_an_odd_number_of_micro_batches_is_where_replicas_beat_the_fold(
    workers: int, micros: int, chimera_slots: int, folded_slots: int
) -> None:
    assert span(generate("chimera-zb", workers=workers, micros=micros), thirds) == chimera_slots
    larger_half = generate("zb-v", workers=workers // 2, micros=(micros + 1) // 2)
    assert span(larger_half, thirds) == folded_slots
