"""A sample of a matrix has every kind of case, and another seed draws another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests import draws

CASES = list(product("abcdef", range(9)))


def test_every_kind_is_drawn_and_no_more_cases_than_that_takes() -> None:
    found = draws.covering(CASES, kinds=lambda case: case)
    assert {letter for letter, _ in found} == set("abcdef")
    assert {number for _, number in found} == set(range(9))
    assert len(found) == 9


def test_as_many_as_are_asked_for_are_drawn() -> None:
    assert len(set(draws.covering(CASES, kinds=lambda case: case, least=20))) == 20
    assert sorted(draws.covering(CASES, kinds=lambda case: case, least=1000)) == CASES


@pytest.mark.parametrize("count", [1, 4, 7])
def test_seeds_in_a_row_draw_every_case_in_parts(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in range(-(-len(CASES) // count)):
        monkeypatch.setattr(draws, "SEED", seed)
        own = draws.part(CASES, count)
        assert len(own) == len(set(own)) == count and own == sorted(own)
        found |= set(own)
    assert found == set(CASES)
    assert draws.part(CASES, len(CASES)) == CASES


def test_the_whole_of_a_matrix_is_taken_where_all_of_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "WHOLE", True)
    assert draws.part(CASES, 2) == CASES == draws.covering(CASES, kinds=lambda case: case)


def test_the_same_seed_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = draws.covering(CASES, kinds=lambda case: case)
    assert first == draws.covering(CASES, kinds=lambda case: case)
    monkeypatch.setattr(draws, "SEED", draws.SEED + 1)
    assert first != draws.covering(CASES, kinds=lambda case: case)
    assert draws.numbers(3) == range(1000 * draws.SEED, 1000 * draws.SEED + 3)


def test_kinds_are_looked_for_until_the_last_is_found() -> None:
    made: list[int] = []

    def cases() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            yield number

    assert draws.found(cases(), kinds=lambda case: [case % 3, "each"], wanted=[2, "each"]) == {2, "each"}
    assert made == [0, 1, 2]
    assert draws.found(range(3), kinds=lambda case: [case], wanted=[2, 3]) == {2}
