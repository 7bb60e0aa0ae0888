"""Processes that share the tests take a file at a time, and what needs one cluster together."""

from __future__ import annotations

from pathlib import Path

from tests.turns import APART, LONGEST, TOGETHER, place, unit

ROOT = Path(__file__).parents[1]


def test_a_file_is_run_by_one_process_and_all_of_slurm_by_one() -> None:
    assert unit("tests/a/test_b.py::test_c[d::e]") == "tests/a/test_b.py"
    assert unit("tests/slurm/test_faults.py::test_a") == unit("tests/slurm/test_turns.py::test_b")
    assert unit(f"{APART[0]}::test_a[b]") == f"{APART[0]}::test_a[b]"


def test_the_longest_come_first() -> None:
    every = ["tests/planner/test_a.py", *reversed(LONGEST)]
    assert sorted(every, key=place) == [*LONGEST, every[0]]


def test_what_is_named_is_there() -> None:
    assert [name for name in (*TOGETHER, *APART, *LONGEST) if not (ROOT / name).exists()] == []
