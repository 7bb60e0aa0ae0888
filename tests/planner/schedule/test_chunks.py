"""Families with several stages a worker, against their published bubbles and memory. Times are in parts of a stage:
F = I = W = 1 of each of the worker's stages, so a micro-batch is 3 a stage of work to each worker."""

from __future__ import annotations

import pytest

from planner.schedule import Kind, generate
from tests.planner.schedule.slots import assert_whole, compute, peaks, period, span, thirds

SHAPES = [
    (2, 2),
    (2, 7),
    (3, 3),
    (4, 4),
    (4, 9),
    (4, 16),
    (5, 12),
    (8, 8),
    (8, 13),
    (8, 32),
    (9, 18),
    (16, 33),
]


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaving_divides_1f1bs_bubble_by_the_stages_of_a_worker(chunks: int) -> None:
    for workers, micros in SHAPES:
        schedule = generate("interleaved", workers=workers, micros=micros, chunks=chunks)
        assert span(schedule, thirds) == 3 * chunks * micros + 3 * (workers - 1)
        if micros % workers == 0 and micros > workers:
            assert max(peaks(schedule)) == (chunks + 1) * workers - 1


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_split_backwards_leave_a_third_of_that_bubble(chunks: int) -> None:
    for workers, micros in SHAPES:
        schedule = generate("interleaved-zb", workers=workers, micros=micros, chunks=chunks)
        assert span(schedule, thirds) == 3 * chunks * micros + workers - 1
        if micros % workers == 0:
            assert max(peaks(schedule)) <= chunks * workers


def test_zb_v_never_stops_between_fill_and_drain_in_1f1bs_memory() -> None:
    for workers, micros in SHAPES:
        schedule = generate("zb-v", workers=workers, micros=micros)
        assert span(schedule, thirds) == 6 * micros + workers - 1
        assert max(peaks(schedule)) <= 2 * workers


def test_steps_of_zb_v_that_follow_each_other_leave_no_bubble_at_all() -> None:
    for workers, micros in SHAPES:
        if micros >= 2 * workers:
            assert period(generate("zb-v", workers=workers, micros=micros), thirds) == 6 * micros


def test_v_half_has_half_of_1f1bs_bubble_in_about_half_its_memory() -> None:
    for workers, micros in SHAPES:
        schedule = generate("v-half", workers=workers, micros=micros)
        assert max(peaks(schedule)) <= 2 * ((workers + 2) // 2)
        assert span(schedule, thirds) - 6 * micros <= 6 * (workers - 1) / 2


def test_v_min_has_two_thirds_of_1f1bs_bubble_in_about_a_third_of_its_memory() -> None:
    for workers, micros in SHAPES:
        schedule = generate("v-min", workers=workers, micros=micros)
        assert max(peaks(schedule)) <= 2 * ((workers + 4) // 3)
        bubble = 6 * (workers - 1) * 2 / 3
        assert span(schedule, thirds) - 6 * micros <= bubble + (workers % 3 == 0)


@pytest.mark.parametrize("family", ["zb-v", "v-half", "v-min"])
def test_a_v_keeps_to_any_cap_that_one_micro_batch_fits_into(family: str) -> None:
    for cap in (2, 3, 6, 11):
        schedule = generate(family, workers=5, micros=9, cap=cap)
        assert_whole(schedule)
        assert max(peaks(schedule)) <= cap
        span(schedule)


def test_more_memory_never_makes_a_v_longer_from_min_to_half_to_whole() -> None:
    for workers in (4, 7, 8, 16):
        spans = [
            span(generate(f, workers=workers, micros=2 * workers), thirds)
            for f in ("v-min", "v-half", "zb-v")
        ]
        assert spans == sorted(spans, reverse=True)


def test_dualpipe_v_pairs_forwards_and_backwards_of_its_two_stages() -> None:
    for workers, micros in [(2, 4), (4, 8), (4, 13), (8, 16), (8, 20)]:
        schedule = generate("dualpipe-v", workers=workers, micros=micros)
        assert_whole(schedule)
        assert max(peaks(schedule)) <= 2 * workers + 2
        assert span(schedule, thirds) == 6 * micros + workers - 1
        for worker, order in enumerate(compute(schedule)):
            text = "".join(f"{a.kind}{int(a.stage > worker)}" for a in order)
            assert "F0B1F1B0" * (micros - 2 * workers + worker + 1) in text


def test_dualpipe_v_with_few_micro_batches_is_listed_in_the_same_memory() -> None:
    schedule = generate("dualpipe-v", workers=8, micros=5)
    assert_whole(schedule)
    assert max(peaks(schedule)) <= 18
    assert not any(a.kind is Kind.B for order in schedule.orders for a in order)


@pytest.mark.parametrize("chunks", [2, 3, 4, 5])
def test_no_two_actions_of_a_wave_fall_on_one_slot(chunks: int) -> None:
    for workers, micros in [(2, 2), (2, 8), (3, 2), (3, 6), (4, 4), (4, 16), (5, 15), (8, 7), (8, 32)]:
        schedule = generate("wave", workers=workers, micros=micros, chunks=chunks)
        stages = workers * chunks
        for order in compute(schedule):
            slots = []
            for action in order:
                unit, m = divmod(action.micro, workers)
                inside = action.stage if action.kind is Kind.F else 2 * stages - 1 - action.stage
                slots.append(2 * stages * unit + 2 * m + inside)
            assert slots == sorted(set(slots))
        if micros % workers == 0:
            assert span(schedule) == 2 * chunks * micros + 2 * (workers - 1)


def test_a_wave_whose_last_unit_is_not_full_is_never_longer_than_a_full_one() -> None:
    for workers, micros in [(4, 5), (4, 7), (4, 9), (5, 12), (8, 13)]:
        full, part = (
            generate("wave", workers=workers, micros=m) for m in (-(-micros // workers) * workers, micros)
        )
        assert_whole(part)
        assert span(part, thirds) <= span(full, thirds)
        assert max(peaks(part)) <= 2 * workers


def test_a_wave_of_two_stages_a_worker_has_its_first_and_last_stage_on_one_worker() -> None:
    place = generate("wave", workers=4, micros=2).place[0]
    assert place == (0, 1, 2, 3, 3, 2, 1, 0)
