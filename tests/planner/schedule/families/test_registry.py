from __future__ import annotations

import random

import pytest

from planner.errors import BadInput
from planner.schedule import FAMILIES, Kind, generate
from tests.planner.schedule.slots import assert_whole, span, thirds

SHAPES = [
    (1, 1),
    (1, 3),
    (2, 1),
    (2, 2),
    (2, 5),
    (3, 2),
    (3, 7),
    (4, 3),
    (4, 4),
    (4, 9),
    (5, 11),
    (6, 6),
    (8, 16),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_does_all_its_work_once_and_never_waits_for_ever(family: str) -> None:
    for workers, micros in SHAPES:
        if FAMILIES[family].paired and workers % 2:
            continue
        schedule = generate(family, workers=workers, micros=micros)
        assert (schedule.workers, schedule.micros) == (workers, micros)
        assert_whole(schedule)
        span(schedule, thirds)


def test_more_chunks_and_pairs_do_all_their_work_once() -> None:
    random_shape = random.Random(3)
    for family, spec in FAMILIES.items():
        for _ in range(8):
            workers, micros = 4 * random_shape.randint(1, 3), random_shape.randint(1, 30)
            chunks = (
                spec.default_chunks + random_shape.randint(0, 2) if isinstance(spec.chunks, int) else None
            )
            pairs = random_shape.choice([1, 2]) if spec.paired else 1
            schedule = generate(family, workers=workers, micros=micros, chunks=chunks, pairs=pairs)
            assert schedule.pipes == (2 * pairs if spec.paired else 1)
            assert schedule.stages == workers * (chunks or spec.default_chunks)
            assert_whole(schedule)
            span(schedule, thirds)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_whether_it_splits_its_backward(family: str) -> None:
    schedule = generate(family, workers=4, micros=8)
    assert FAMILIES[family].splits == any(a.kind is Kind.W for order in schedule.orders for a in order)


def test_the_same_request_makes_the_same_schedule() -> None:
    for family in FAMILIES:
        assert generate(family, workers=4, micros=9) == generate(family, workers=4, micros=9)


def test_settings_are_kept_with_the_schedule() -> None:
    schedule = generate("chimera", workers=8, micros=16, pairs=2, concat="doubling")
    assert schedule.settings == {"pairs": 2, "chunks": 1, "concat": "doubling"}


def test_an_unknown_family_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadInput, match=r"no family 'pipedream'.*1f1b, gpipe"):
        generate("pipedream", workers=4, micros=4)


@pytest.mark.parametrize("family", ["chimera", "chimera-zb"])
def test_chimera_refuses_an_odd_number_of_workers(family: str) -> None:
    with pytest.raises(BadInput, match=rf"{family}: 5 workers.*even"):
        generate(family, workers=5, micros=4)


@pytest.mark.parametrize("family", ["chimera", "chimera-zb"])
def test_chimera_refuses_pairs_that_do_not_divide_half_the_workers(family: str) -> None:
    with pytest.raises(BadInput, match=r"4 pairs on 12 workers.*divisors of 6: 1, 2, 3, 6"):
        generate(family, workers=12, micros=4, pairs=4)


@pytest.mark.parametrize(
    ("family", "request_", "message"),
    [
        ("1f1b", {"workers": 0}, "workers is 0"),
        ("1f1b", {"micros": 0}, "micros is 0"),
        ("1f1b", {"micros": -3}, "micros is -3"),
        ("1f1b", {"workers": "4"}, "workers is '4'.*a whole number"),
        ("zb-v", {"micros": 2.5}, "micros is 2.5.*a whole number"),
        ("gpipe", {"micros": True}, "micros is True.*a whole number"),
        ("chimera", {"pairs": "1"}, "pairs is '1'.*a whole number"),
        ("interleaved", {"chunks": "2"}, "chunks is '2'.*a whole number"),
        ("listed", {"pending": -5}, "a negative or empty count"),
        ("1f1b", {"pairs": 2}, "only Chimera has pairs"),
        ("1f1b", {"chunks": 2}, "2 stages a worker.*1"),
        ("zb-v", {"chunks": 1}, "1 stages a worker.*2"),
        ("interleaved", {"chunks": 1}, "1 stages a worker.*2 or more"),
        ("1f1b", {"warmup": 0}, "warmup is 0"),
        ("1f1b", {"warmup": "long"}, "warmup is 'long'.*whole number"),
        ("1f1b", {"warmup": True}, "warmup is True.*whole number"),
        ("1f1b", {"cap": 4}, "no setting 'cap'.*warmup"),
        ("gpipe", {"cap": 4}, "no setting 'cap'.*parts, late, sums"),
        ("chimera", {"concat": "twice"}, "concat is 'twice'.*direct, doubling, halving"),
        ("chimera", {"chunks": 2}, "2 stages a worker"),
        ("zb-v", {"cap": 1}, "cap is 1"),
        ("chimera-zb", {"cap": 0}, "cap is 0"),
        ("listed", {"order": "FFB"}, "order is 'FFB'"),
        ("listed", {"tie": "last"}, "tie is 'last'.*first, deep"),
        ("listed", {"placement": "ring"}, "placement is 'ring'.*dealt, zigzag"),
        ("listed", {"split": 1}, "split is 1.*true or false"),
        ("listed", {"grain": 0}, "grain 1 or more"),
    ],
)
def test_what_a_family_does_not_allow_is_refused_by_name(
    family: str, request_: dict[str, int | float | str | bool], message: str
) -> None:
    whole: dict[str, int | float | str | bool] = {"workers": 4, "micros": 4, **request_}
    with pytest.raises(BadInput, match=message):
        generate(family, **whole)  # type: ignore[arg-type]


def test_a_cap_that_not_one_micro_batch_fits_into_shows_the_grid_and_the_culprit() -> None:
    with pytest.raises(BadInput) as error:
        generate("listed", workers=3, micros=4, chunks=3, cap=2)
    text = str(error.value)
    assert "the caps deadlock" in text
    assert "worker 2:" in text and "<-- here: no room" in text
