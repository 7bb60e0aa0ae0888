"""How every command speaks: people read standard output, programs read one JSON object there with `--json`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TextIO

from planner.errors import BadInput, ShardwrightError

MOST_RARELY_S = 300.0  # between two words of what takes long

_ANSWERS: ContextVar[TextIO | None] = ContextVar("_ANSWERS", default=None)


@contextmanager
def answers_alone() -> Iterator[None]:
    """Only answers reach standard output; what a workload of the user prints goes to standard error."""
    before = _ANSWERS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(before)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results, progress and warnings of one command go."""

    as_json: bool

    def result(self, data: object, text: Callable[[], str]) -> None:
        """The one result of a command: as JSON, or as text for people."""
        print(json.dumps(data) if self.as_json else text(), file=_ANSWERS.get(), flush=True)

    def note(self, text: str) -> None:
        """What is worth saying on the way; never part of the result."""
        print(text, file=sys.stderr, flush=True)


@contextmanager
def patient(doing: str, first_s: float = 1.0) -> Iterator[None]:
    """Says every now and then, ever more rarely, that something which takes long is still being done."""
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        pause_s = first_s
        while not done.wait(pause_s):
            print(f"{doing}: {time.monotonic() - begun:.0f} s so far", file=sys.stderr, flush=True)
            pause_s = min(2 * pause_s, MOST_RARELY_S)

    teller = threading.Thread(target=tell, name="patient", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def report_error(error: ShardwrightError, *, as_json: bool) -> int:
    if as_json:
        print(
            json.dumps({"error": {"kind": type(error).__name__, "message": str(error)}}), file=_ANSWERS.get()
        )
    print(f"error: {error}", file=sys.stderr)
    return error.status


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers, each at least 1, in order and without repeats."""
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
    """`1,2,2x2` as parts along each dim; whole samples, 1 or 1x1, are not among them."""
    try:
        found = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"'{text}' is no list of parts", where=option, allowed="such as 1,2,2x2") from None
    least = min(part for grid in found for part in grid)
    if least < 1:
        raise BadInput(f"{least} is too small", where=option, allowed="1 or more")
    return tuple(dict.fromkeys(grid for grid in found if max(grid) > 1))
