"""Plain tables: legible in a log, and in a terminal as narrow as it may be."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from planner.shown import one_line

GAP = "  "
LEAST = 12  # columns of text that words are wrapped into; narrower, a row becomes a paragraph


def columns(rows: Sequence[Sequence[object]], heads: Sequence[str], *, width: int | None = None) -> str:
    """Sets rows as a table; numbers stand right.

    Cells wider than the terminal (or COLUMNS) wrap their words, or else each row becomes a paragraph. Files and pipes
    get whole lines.

    Args: `width` replaces the width of the terminal.
    Returns: lines without a line break at the end.
    """
    table = [list(heads), *([one_line(str(cell)) for cell in row] for row in rows)]
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = [len(table) > 1 and all(map(_number, column[1:])) for column in zip(*table, strict=True)]
    room = room_of_terminal() if width is None else width
    if room is not None:
        fitted = _fitted(wide, right, room)
        if fitted is None:
            return "\n".join(_paragraph(table[0], row, room) for row in table[1:])
        wide = fitted
    return "\n".join(line for row in table for line in _lines(row, wide, right))


def room_of_terminal() -> int | None:
    """Returns the characters of a line: COLUMNS, or the terminal's width; None where there is neither."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said):
        return max(int(said), 20)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitted(wide: Sequence[int], right: Sequence[bool], room: int) -> list[int] | None:
    """Takes from the widest columns of words until all fit; None where that leaves too little of them."""
    found = list(wide)
    words = [i for i, numbers in enumerate(right) if not numbers and wide[i] > LEAST]
    while (over := sum(found) + len(GAP) * (len(found) - 1) - room) > 0:
        widest = max(words, key=lambda i: found[i], default=None)
        if widest is None or found[widest] <= LEAST:
            return None
        found[widest] -= 1 if over < len(found) else min(over // len(found), found[widest] - LEAST)
    return found


def _lines(row: Sequence[str], wide: Sequence[int], right: Sequence[bool]) -> list[str]:
    cells = [
        textwrap.wrap(cell, w, break_on_hyphens=False) if len(cell) > w else [cell]
        for cell, w in zip(row, wide, strict=True)
    ]
    return [
        GAP.join(
            text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, wide, right, strict=True)
        ).rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]


def _paragraph(heads: Sequence[str], row: Sequence[str], room: int) -> str:
    told = [f"{head} {cell}".strip() for head, cell in zip(heads, row, strict=True) if cell]
    return textwrap.fill("; ".join(told), room, subsequent_indent=GAP, break_on_hyphens=False)


_WORDS = re.compile(r"\d+[a-z]\d|.*, ")  # "1f1b", or a list such as "2 replicas, 4 workers"


def _number(text: str) -> bool:
    return not text or ((text[0].isdigit() or text[0] in "-+.<") and not _WORDS.match(text))
