"""The voice of every command: people read standard output, programs read one JSON object there with `--json`.

All text goes through `printable`, so that no file that a command has read can steer the terminal.

Tables are plain, so that they are legible in a log, and in a terminal as narrow as it may be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from planner.errors import BadInput, ShardwrightError, causes
from planner.shown import one_line, printable

MOST_RARELY_S = 300.0  # between two words of what takes long
LONGEST_LINE = 4096  # characters of a message

_ANSWERS: ContextVar[TextIO | None] = ContextVar("_ANSWERS", default=None)


@contextmanager
def answers_alone() -> Iterator[None]:
    """Keeps standard output for answers while it is entered: what a user's workload prints goes to standard error.

    Yields: nothing; `Output.result` still writes to the standard output of before.
    """
    before = _ANSWERS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(before)


@dataclass(frozen=True, kw_only=True)
class Output:
    """The way out for the result and the notes of one command."""

    as_json: bool

    def result(self, data: object, text: Callable[[], str]) -> None:
        """Prints the one result of a command.

        Args: `data` is what JSON can hold, for `--json`; `text` is called for people only.
        """
        print(json.dumps(data) if self.as_json else printable(text()), file=_ANSWERS.get(), flush=True)

    def note(self, text: str) -> None:
        """Prints a line to standard error, which is never part of the result.

        Args: `text` is for people.
        """
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def patient(doing: str, first_s: float = 1.0) -> Iterator[None]:
    """Prints a line now and then, ever more rarely, while a long task runs.

    Args: `doing` names the task; `first_s` is the seconds until the first line.
    """
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        pause_s = first_s
        while not done.wait(pause_s):
            print(f"{printable(doing)}: {time.monotonic() - begun:.0f} s so far", file=sys.stderr, flush=True)
            pause_s = min(2 * pause_s, MOST_RARELY_S)

    teller = threading.Thread(target=tell, name="patient", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def report_error(error: ShardwrightError, *, as_json: bool) -> int:
    """Prints an error to standard error, and as JSON to standard output where that is asked for.

    Returns: the exit status of the command.
    """
    because = causes(error)
    if as_json:
        told: dict[str, object] = {"kind": type(error).__name__, "message": str(error)}
        told |= {"causes": because} if because else {}
        print(json.dumps({"error": told}), file=_ANSWERS.get())
    said = [f"error: {_within(str(error))}", *map(_within, because)]
    print("\n  caused by ".join(map(printable, said)), file=sys.stderr)
    return error.status


def _within(text: str) -> str:
    """Returns a message whose lines are cut where they are too long to be read."""
    lines = (line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in text.split("\n"))
    return "\n".join(lines)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Reads a list of whole numbers, such as `1,2,4`.

    Returns: the numbers in order and without repeats.
    Raises: BadInput that names `option`, for anything else or a number below 1.
    """
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise BadInput(
            f"'{text}' is no list of whole numbers", where=option, allowed="such as 1,2,4"
        ) from None
    if numbers[0] < 1:
        raise BadInput(f"{numbers[0]} is too small", where=option, allowed="1 or more")
    return tuple(numbers)


def grids(text: str, option: str) -> tuple[tuple[int, ...], ...]:
    """Reads a list of grids, such as `1,2,2x2`.

    Returns: the parts along each dimension of every grid; grids of one part, 1 or 1x1, are left out.
    Raises: BadInput that names `option`, for anything else or a part below 1.
    """
    try:
        found = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"'{text}' is no list of parts", where=option, allowed="such as 1,2,2x2") from None
    least = min(part for grid in found for part in grid)
    if least < 1:
        raise BadInput(f"{least} is too small", where=option, allowed="1 or more")
    return tuple(dict.fromkeys(grid for grid in found if max(grid) > 1))


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
