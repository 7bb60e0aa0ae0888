from __future__ import annotations

import random

import pytest

from planner.schedule.action import Kind
from planner.schedule.families import generate
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


@pytest.mark.parametrize("workers", [4, 8, 12, 16])
def test_most_other_numbers_of_micro_batches_do_too(workers: int) -> None:
    over = []
    for micros in range(workers, 4 * workers + 1):
        schedule = generate("chimera-zb", workers=workers, micros=micros)
        assert max(peaks(schedule)) <= workers
        over.append(span(schedule, thirds) - least(workers, 1, micros))
    assert min(over) == 0
    assert max(over) <= workers // 4
    assert sum(extra > 0 for extra in over) <= 5


@pytest.mark.parametrize(
    ("micros", "over"), [(4, 0), (6, 0), (8, 0), (10, 0), (14, 0), (7, 1), (11, 1), (15, 1)]
)
def test_where_every_worker_holds_every_stage_it_ends_with_the_work_or_a_slot_later(
    micros: int, over: int
) -> None:
    schedule = generate("chimera-zb", workers=4, micros=micros, pairs=2)
    assert span(schedule, thirds) == least(4, 2, micros) + over


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
