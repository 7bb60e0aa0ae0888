"""Tables as wide as they need to be, and in a terminal no wider than it is."""

from __future__ import annotations

import pytest

from planner.terminal import columns

HEADS = ("stage", "layers", "forward", "why")
ROWS = [
    (0, "transformer.h.0 .. transformer.h.11 (48)", "3.032 ms", "the plan itself; bubble 0.0%"),
    (10, "loss", "12 µs", ""),
]


def test_a_table_for_a_file_is_as_wide_as_it_needs_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns(ROWS, HEADS).splitlines() == [
        "stage  layers                                     forward  why",
        "    0  transformer.h.0 .. transformer.h.11 (48)  3.032 ms  the plan itself; bubble 0.0%",
        "   10  loss                                         12 µs",
    ]


@pytest.mark.parametrize("width", range(20, 100))
def test_nothing_is_wider_than_the_terminal_and_no_word_is_lost(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = columns(ROWS, HEADS)
    assert max(map(len, text.splitlines())) <= width
    told = "".join(text.split())
    for cell in ("3.032ms", "12µs", "(48)", "itself;"):
        assert cell in told


def test_numbers_are_never_broken_and_stand_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = columns(ROWS, HEADS).splitlines()
    assert lines[1].startswith("    0  transformer.h.0 ..") and "  3.032 ms  " in lines[1]
    assert len(lines) > 3 and lines[-1].startswith("   10  loss")


def test_where_columns_cannot_be_a_row_is_a_paragraph() -> None:
    assert columns(ROWS, HEADS, width=24).splitlines()[-2:] == [
        "stage 10; layers loss;",
        "  forward 12 µs",
    ]


def test_an_empty_table_is_its_heads_at_any_width() -> None:
    assert columns([], ("step", "loss"), width=60) == "step  loss"
    assert columns([("a", "")], ("", ""), width=20) == "\na"
