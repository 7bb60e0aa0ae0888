"""Lays text out for people: no word is broken, tables fit the terminal, and colours say what a line means.

Files and pipes get whole lines without colours. A terminal, or COLUMNS, gets lines no wider than it is, as far as words
allow. Colours only repeat what the words say, so that nothing is lost under NO_COLOR.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from planner.shown import DrawnText, one_line

if TYPE_CHECKING:
    from rich.text import Text

GAP = "  "
NARROWEST = 20  # columns of a terminal that is taken at its word
_STYLES = {"chosen": "bold green", "miss": "yellow", "refused": "bold red", "hint": "cyan"}
# What a text says, and what that means to whoever reads it. Each row is a whole phrase of ours, told by no user's file.
_MEANINGS = (
    ("chosen", r"^this plan\b.*$"),
    ("chosen", r"^  (?:proved fastest|the only plan the pins allow)[^;(\n]*"),
    ("chosen", r"^\S+ holds\b"),
    ("chosen", r"(?<=  )well(?=  )"),
    ("chosen", r"^written to\b|^plan written to\b"),
    ("miss", r"\b(?:at most \S+ % slower than the best|not proved: this plan was written by hand)\b"),
    ("miss", r"(?:  |; )(?:within the error|takes as long|faster, but not what was asked for)$"),
    ("miss", r"(?<=  )absent(?=  )"),
    ("miss", r"\boutside the predicted\b|^stopped early\b.*|^slow: .*|^warning: .*"),
    ("refused", r"^error:|^  caused by\b|\bdoes not fit: [^;\n]*$|\bnone for this batch\b.*$"),
    ("refused", r"(?<=  )wrong(?=  )|^(?:failed|cancelled|interrupted|timeout|preempted)(?=:)"),
    ("hint", r"(?<![\w-])--[a-z][a-z-]+\b|`[^`]+`"),
)


def say(text: str, stream: TextIO) -> None:
    """Prints text that is safe to print, as a terminal takes it best.

    Args: lines are wrapped to the room of `stream`, between words; `DrawnText` is printed as it is.
    """
    if isinstance(text, DrawnText):
        print(text, file=stream, flush=True)
        return
    laid = wrapped(text, room_of(stream))
    if not has_colour(stream):
        print(laid, file=stream, flush=True)
        return
    from rich.console import Console

    Console(file=stream, highlight=False, force_jupyter=False).print(coloured(laid), soft_wrap=True)
    stream.flush()


def has_colour(stream: TextIO) -> bool:
    """Returns whether colours are wanted: on a terminal that has them, and never with NO_COLOR."""
    asked = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
    return asked and not os.environ.get("NO_COLOR")


def coloured(text: str) -> Text:
    """Returns text with the colours of what its lines mean: chosen, a miss, refused, or a hint what to type."""
    from rich.text import Text

    found = Text(text)
    for meaning, phrase in _phrases():
        for match in phrase.finditer(text):
            found.stylize(_STYLES[meaning], *match.span())
    return found


@cache
def _phrases() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((meaning, re.compile(phrase, re.MULTILINE)) for meaning, phrase in _MEANINGS)


def room_of(stream: TextIO) -> int | None:
    """Returns the characters of a line: COLUMNS, or the width of the terminal; None where there is neither."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said):
        return max(int(said), NARROWEST)
    if not stream.isatty():
        return None
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, NARROWEST)
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def wrapped(text: str, room: int | None) -> str:
    """Returns text whose lines are no longer than the room, as far as whole words allow.

    Args: `room` is None for whole lines.
    Returns: what goes on in the next line is indented below the text of its line.
    """
    if room is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _wrapped_line(line, room))


def _wrapped_line(line: str, room: int) -> list[str]:
    if len(line) <= room:
        return [line]
    return _wrap(line, room, more=" " * _hang(line, room)) or [line]


def _hang(line: str, room: int) -> int:
    """Returns where the text of a line begins: behind its last gap, such as that of a list with names on the left."""
    gaps = [match.end() for match in re.finditer(r" {2,}", line[: room // 2])]
    return gaps[-1] if gaps else 4


_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mnµ]?s|[KMGT]?i?B)(?!\w))")  # what stands between a number and its unit


def _wrap(text: str, width: int, first: str = "", more: str = "") -> list[str]:
    """Wraps between words; a number stays with its unit."""
    kept = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(
        kept,
        width,
        initial_indent=first,
        subsequent_indent=more,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def columns(
    rows: Sequence[Sequence[object]],
    heads: Sequence[str],
    *,
    width: int | None = None,
    under: Sequence[str] = (),
) -> str:
    """Sets rows as a table; numbers stand right, and no word is broken.

    Cells and heads wrap between words where the terminal (or COLUMNS) is narrow. Where that is not enough, the columns
    `under` go below their row, and at last each row becomes a paragraph. Files and pipes get whole lines.

    Args: `width` replaces the width of the terminal; `under` are heads.
    Returns: lines without a line break at the end.
    """
    table = [list(heads), *([one_line(str(cell)) for cell in row] for row in rows)]
    room = room_of(sys.stdout) if width is None else width
    found = _table(table, room)
    if found is None and under:
        found = _with_more_below(table, [head in under for head in heads], room)
    if found is not None:
        return "\n".join(line for row in found for line in row)
    return "\n".join(_paragraph(table[0], row, room or NARROWEST) for row in table[1:])


def _table(table: Sequence[Sequence[str]], room: int | None) -> list[list[str]] | None:
    """Returns the lines of each row, the heads first; None where the room is too small for whole words."""
    cells = [list(column) for column in zip(*table, strict=True)]
    wide = [max(map(len, column)) for column in cells]
    right = [len(table) > 1 and all(map(_number, column[1:])) for column in cells]
    if room is not None:
        least = [_least(column, numbers) for column, numbers in zip(cells, right, strict=True)]
        found = _fitted(wide, least, room)
        if found is None:
            return None
        wide = found
    return [_lines(row, wide, right) for row in table]


def _least(column: Sequence[str], numbers: bool) -> int:
    """Returns the width below which a word of a column, or a number with its unit, would be broken."""
    whole = column[1:] if numbers else []
    words = [word for cell in (column[:1] if numbers else column) for word in cell.split()]
    return max(map(len, (*whole, *words)), default=0)


def _fitted(wide: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Takes from the widest columns that can give until all fit; None where they cannot."""
    found = list(wide)
    while (over := sum(found) + len(GAP) * (len(found) - 1) - room) > 0:
        widest = max(
            (i for i in range(len(found)) if found[i] > least[i]), key=found.__getitem__, default=None
        )
        if widest is None:
            return None
        found[widest] -= max(1, min(over // len(found), found[widest] - least[widest]))
    return found


def _lines(row: Sequence[str], wide: Sequence[int], right: Sequence[bool]) -> list[str]:
    cells = [_wrap(cell, w) if len(cell) > w else [cell] for cell, w in zip(row, wide, strict=True)]
    return [
        GAP.join(
            text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, wide, right, strict=True)
        ).rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]


def _with_more_below(
    table: Sequence[Sequence[str]], below: Sequence[bool], room: int | None
) -> list[list[str]] | None:
    """Returns a table of the other columns, with the rest of each row below it, indented."""
    kept = [[cell for cell, under in zip(row, below, strict=True) if not under] for row in table]
    found = _table(kept, room)
    if found is None or room is None:
        return None
    for lines, row in zip(found[1:], table[1:], strict=True):
        rest = [(head, cell) for head, cell, under in zip(table[0], row, below, strict=True) if under]
        lines += _told(rest, room, 2 * GAP, 3 * GAP)
    return found


def _paragraph(heads: Sequence[str], row: Sequence[str], room: int) -> str:
    return "\n".join(_told(list(zip(heads, row, strict=True)), room, "", GAP))


def _told(cells: Sequence[tuple[str, str]], room: int, first: str, more: str) -> list[str]:
    told = "; ".join(f"{head} {cell}".strip() for head, cell in cells if cell)
    return _wrap(told, room, first, more)


_WORDS = re.compile(r"\d+[a-z]\d|.*, ")  # "1f1b", or a list such as "2 replicas, 4 workers"


def _number(text: str) -> bool:
    return not text or ((text[0].isdigit() or text[0] in "-+.<") and not _WORDS.match(text))
