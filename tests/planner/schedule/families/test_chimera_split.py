from __future__ import annotations

import random
from collections import Counter

import pytest

from planner.schedule import Kind, Schedule, generate
from tests.planner.schedule.slots import assert_whole, peaks, period, span, thirds

GRID = [(workers, pairs) for workers in range(2, 33, 2) for pairs in (1, 2, 4) if workers // 2 % pairs == 0]


def least(workers: int, pairs: int, micros: int) -> int:
    """The middle worker cannot start sooner and then works without a pause."""
    return 3 * micros + workers // (2 * pairs) - 1


def test_whole_units_end_as_early_as_any_order_can_with_a_unit_in_flight() -> None:
    for workers, pairs in GRID:
        for units in (1, 2, 3, 4) if workers <= 16 else (2,):
            micros = units * workers
            schedule = generate("chimera-zb", workers=workers, micros=micros, pairs=pairs)
            assert span(schedule, thirds) == least(workers, pairs, micros)
            assert max(peaks(schedule)) <= workers


@pytest.mark.parametrize(("workers", "pairs"), [shape for shape in GRID if shape[0] <= 8])
def test_any_number_of_micro_batches_from_a_unit_on_ends_as_early_as_any_order_can(
    workers: int, pairs: int
) -> None:
    for micros in range(workers, 4 * workers + 1):
        assert_least(workers, pairs, micros)


def test_so_does_any_number_on_more_workers() -> None:
    draw = random.Random(7)
    for workers, pairs in draw.sample([shape for shape in GRID if shape[0] > 8], 10):
        assert_least(workers, pairs, draw.randint(workers + 1, 4 * workers))


@pytest.mark.parametrize(("workers", "pairs"), [(10, 1), (16, 1), (20, 2), (24, 4), (32, 2)])
def test_the_first_numbers_past_a_unit_which_no_single_policy_lists_well_do_too(
    workers: int, pairs: int
) -> None:
    for over in (2, 3, 5):
        assert_least(workers, pairs, workers + over)


def assert_least(workers: int, pairs: int, micros: int) -> None:
    schedule = generate("chimera-zb", workers=workers, micros=micros, pairs=pairs)
    assert_whole(schedule)
    assert max(peaks(schedule)) <= workers
    assert span(schedule, thirds) == least(workers, pairs, micros), (workers, pairs, micros)


def test_fewer_micro_batches_than_workers_end_when_the_first_backward_lets_them_which_is_later() -> None:
    for workers, pairs in [shape for shape in GRID if shape[0] <= 16]:
        for micros in range(1, workers):
            schedule = generate("chimera-zb", workers=workers, micros=micros, pairs=pairs)
            soonest = soonest_of_few(schedule)
            assert max(peaks(schedule)) <= workers
            assert soonest >= least(workers, pairs, micros) + workers - micros
            open_case = (workers, pairs, micros) == (12, 2, 7)  # 28 slots are the bound, but not reached
            assert span(schedule, thirds) == soonest + open_case


def soonest_of_few(schedule: Schedule) -> int:
    """Forwards before the first backward can reach a worker, all else after it; or the way of the fullest pipe."""
    workers, micros = schedule.workers, schedule.micros
    carried = Counter(schedule.pipe_of)
    soonest = 2 * workers + 2 * max(carried.values()) - 1
    for worker in range(workers):
        stages = [schedule.place[pipe].index(worker) for pipe in carried]
        turned = max(min(stages) + micros, 2 * workers - 1 - max(stages))
        soonest = max(soonest, turned + 2 * micros)
    return soonest


def test_it_is_shorter_than_1f1b_and_zb_h1_in_the_same_memory() -> None:
    for workers in (4, 8, 16):
        ours, *others = (
            span(generate(family, workers=workers, micros=2 * workers), thirds)
            for family in ("chimera-zb", "1f1b", "zb-h1")
        )
        assert ours < min(others)


def test_half_as_much_memory_again_hides_the_fill_of_the_next_step() -> None:
    periods = [period(generate("chimera-zb", workers=8, micros=16, cap=cap), thirds) for cap in (8, 12)]
    assert periods == [51, 48]


@pytest.mark.parametrize("cap", [1, 2, 3, 5, 8, 13])
def test_no_cap_is_too_small_for_one_micro_batch_and_none_is_exceeded(cap: int) -> None:
    for workers, pairs in [(2, 1), (4, 1), (8, 1), (8, 2), (8, 4)]:
        schedule = generate("chimera-zb", workers=workers, micros=11, pairs=pairs, cap=cap)
        assert_whole(schedule)
        assert max(peaks(schedule)) <= cap
        span(schedule)


@pytest.mark.parametrize(
    ("workers", "chunks", "micros"), [(8, 2, 8), (8, 2, 16), (8, 2, 9), (8, 4, 16), (4, 3, 8)]
)
def test_several_stages_a_direction_divide_the_fill(workers: int, chunks: int, micros: int) -> None:
    schedule = generate("chimera-zb", workers=workers, micros=micros, chunks=chunks)
    assert_whole(schedule)
    assert span(schedule, thirds) == 3 * chunks * micros + workers // 2 - 1
    assert max(peaks(schedule)) <= chunks * workers


def test_it_splits_every_backward() -> None:
    shape = random.Random(1)
    for _ in range(5):
        workers = 2 * shape.randint(1, 6)
        schedule = generate("chimera-zb", workers=workers, micros=shape.randint(1, 20))
        assert not any(action.kind is Kind.B for order in schedule.orders for action in order)


def test_the_same_request_always_gives_the_same_order() -> None:
    first, second = (generate("chimera-zb", workers=8, micros=9, pairs=4) for _ in range(2))
    assert first == second
