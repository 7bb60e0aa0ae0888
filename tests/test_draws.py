"""A sample of a matrix has every kind of case, and another seed draws another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests import budget, draws

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


TESTS = [f"tests/test_a.py::test_each[{number}]" for number in range(10)]


def test_so_many_cases_are_drawn_as_take_the_time_that_a_test_may(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, seconds = "tests/test_a.py::test_alone", {"tests/test_a.py::test_each": budget.MOST_S / 2}
    monkeypatch.setattr(draws, "WHOLE", False)
    ran = set()
    for seed in range(5):
        monkeypatch.setattr(draws, "SEED", seed)
        left = budget.left_out([alone, *TESTS], seconds)
        assert len(left) == 8 and alone not in left
        ran |= set(TESTS) - left
    assert ran == set(TESTS)
    assert len(budget.left_out(TESTS, {"tests/test_a.py::test_each": 9 * budget.MOST_S})) == 9
    monkeypatch.setattr(draws, "WHOLE", True)
    assert budget.left_out(TESTS, seconds) == set()


def test_tests_that_are_drawn_are_there() -> None:
    for name in budget.known():
        file, function = name.split("::")
        assert f"def {function}(" in Path(file).read_text(), name


def test_what_tests_take_is_read_from_a_run(tmp_path: Path) -> None:
    rows = [
        ("each[a]", 1.5),
        ("each[b]", 1.0),
        ("quick[a]", 0.1),
        ("quick[b]", 0.1),
        ("single", 9.0),
        ("tiny", 0),
    ]
    cases = "".join(
        f'<testcase classname="tests.test_a" name="test_{name}" time="{seconds}"/>' for name, seconds in rows
    )
    (tmp_path / "junit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    before = {"tests/test_a.py::test_single": 3.0, "tests/test_a.py::test_tiny": 1.0}
    found = budget.measured(tmp_path / "junit.xml", before)
    wanted = {"each": 1.25, "single": 9.0, "tiny": budget.LEAST_S}  # never 0, by which nobody can divide
    assert found == {f"tests/test_a.py::test_{name}": seconds for name, seconds in wanted.items()}
    assert min(budget.known().values()) >= budget.LEAST_S
