"""The voice of every command: people read standard output, programs read one JSON object there with `--json`.

All text goes through `printable`, so that no file that a command has read can steer the terminal, and is laid out for
the terminal that takes it (`layout.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

from planner.errors import BadInput, ShardwrightError, causes
from planner.shown import printable
from planner.terminal.layout import say

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
        if self.as_json:
            print(json.dumps(data), file=_ANSWERS.get(), flush=True)
        else:
            say(printable(text()), _ANSWERS.get() or sys.stdout)

    def file(self, data: object, text: str) -> None:
        """Prints the text of a file, such as a script, whose lines stay as they are.

        Args: `data` and `text` are as in `result`.
        """
        print(json.dumps(data) if self.as_json else printable(text), file=_ANSWERS.get(), flush=True)

    def note(self, text: str) -> None:
        """Prints a line to standard error, which is never part of the result.

        Args: `text` is for people.
        """
        say(printable(text), sys.stderr)


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
    say("\n  caused by ".join(map(printable, said)), sys.stderr)
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
