"""Text and tables as wide as they need to be, in a terminal no wider than it is; colours repeat what words say."""

from __future__ import annotations

import io

import pytest

from planner.terminal import columns, layout, say

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


def test_where_a_table_is_too_wide_some_columns_go_below_their_row() -> None:
    rows = [
        ("this plan", "1f1b, 2 replicas", "3 ms", ""),
        ("gpipe", "4 workers", "31 ms", "within the error"),
    ]
    heads = ("plan", "configuration", "step", "")
    assert columns(rows, heads, width=30, under=("configuration", "")).splitlines() == [
        "plan        step",
        "this plan   3 ms",
        "    configuration 1f1b, 2",
        "      replicas",
        "gpipe      31 ms",
        "    configuration 4 workers;",
        "      within the error",
    ]
    assert len(columns(rows, heads, under=("configuration", "")).splitlines()) == 3, "a file has whole lines"


def test_a_word_longer_than_the_room_stays_whole() -> None:
    path = "/a/path/that/nobody/could/break/anywhere.yaml"
    assert path in columns([("plan", path)], ("what", "where"), width=24)
    assert f"{path}:" in layout.wrapped(f"error: {path}: exists already", 24).split()


def test_what_goes_on_is_indented_below_its_line_and_a_number_keeps_its_unit() -> None:
    line = "  schedules      4 families, each in its own order, which take 33.45 ms at most"
    for room in range(30, 80):
        first, *more = layout.wrapped(line, room).splitlines()
        assert first.startswith("  schedules")
        assert all(part.startswith(" " * (17 if room >= 34 else 2)) for part in more)
        assert "33.45 ms" in layout.wrapped(line, room)


MEANT = {
    "this plan   3 ms": ("chosen", "this plan   3 ms"),
    "gpipe   3 ms  within the error": ("miss", "within the error"),
    "  proved fastest of 3 configurations for these costs; 2 others lie": (
        "chosen",
        "  proved fastest of 3 configurations for these costs",
    ),
    "  at most 3.2 % slower than the best of 120 configurations": (
        "miss",
        "at most 3.2 % slower than the best",
    ),
    "one device   does not fit: 5 MiB short on a device": (
        "refused",
        "does not fit: 5 MiB short on a device",
    ),
    "error: nowhere": ("refused", "error:"),
    "torch     well    2.13": ("chosen", "well"),
    "SLURM   absent  no sbatch": ("miss", "absent"),
    "locks     wrong   cannot": ("refused", "wrong"),
    "plan written to p.yaml": ("chosen", "plan written to"),
    "type --explain for more": ("hint", "--explain"),
}


@pytest.mark.parametrize("line", MEANT)
def test_a_colour_says_what_a_line_means(line: str) -> None:
    meaning, words = MEANT[line]
    spans = layout.coloured(line).spans
    assert [(str(span.style), line[span.start : span.end].strip("; ")) for span in spans] == [
        (layout._STYLES[meaning], words.strip())
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    screen, file = Terminal(), io.StringIO()
    say("error: no", screen)
    say("error: no", file)
    assert "\x1b[" in screen.getvalue() and file.getvalue() == "error: no\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as within:
            within.setenv(name, value)
            plain = Terminal()
            say("error: no", plain)
            assert plain.getvalue() == "error: no\n", name
