"""The voice of every command: people read standard output, programs read one JSON object there with `--json`.

All text goes through `printable`, so that no file that a command has read can steer the terminal, and is laid out for
the terminal that takes it (`layout.py`). What takes long says how it goes: a bar or a line on a terminal, now and then a
line elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from planner.errors import ShardwrightError, causes
from planner.shown import printable
from planner.terminal.layout import room_of, say

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


if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_LINE_S = 1.0  # what takes less is not spoken of
SECONDS_BETWEEN_LINES = 10.0
MOST_RARELY_S = 300.0  # between two words of what takes long
LEAST_SHARE = 0.05  # of the work: before it, nobody knows how long the rest takes
_A_SECOND = 4  # times that a line in place is written


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


class Report:
    """A report of progress. The bar needs a thread and appears when first there is something to show.

    Until then this process may fork.
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title, self._stream = printable(title), stream or sys.stderr
        self._begun = self._spoken = time.monotonic()
        self._pause_s, self._doing = FIRST_LINE_S, ""
        self._bar: Progress | None = None

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, share: float, doing: str = "") -> None:
        """Reports progress; to be called often. A step that is named is spoken of once it has lasted a second.

        Args: `share` is between 0 and 1; `doing` names the step.
        """
        now = time.monotonic()
        if doing != self._doing:
            self._doing, self._pause_s, self._spoken = doing, FIRST_LINE_S, now
        if self._stream.isatty():
            self._shown(share)
        elif now - self._spoken > self._pause_s:
            self._spoken, self._pause_s = now, SECONDS_BETWEEN_LINES
            print(self.line(share, now - self._begun), file=self._stream, flush=True)

    @contextmanager
    def step(self, share: float, doing: str) -> Iterator[None]:
        """Reports a step in which nobody can call `at`, while it is entered.

        Args: `share` is between 0 and 1; `doing` names the step.
        """
        self._doing = doing
        if self._stream.isatty():
            self._shown(share)
            yield
        else:
            with patient(self._named, FIRST_LINE_S):
                yield

    def say(self, text: str) -> None:
        """Prints a line where progress is reported.

        Args: `text` is for people.
        """
        print(printable(text), file=self._stream, flush=True)

    def line(self, share: float, spent_s: float) -> str:
        """Returns the line that is printed where there is no terminal.

        Args: `share` is between 0 and 1; `spent_s` is seconds since the start.
        """
        left = f", about {spent_s * (1 - share) / share:.0f} s left" if share >= LEAST_SHARE else ""
        return f"{self._named}: {share:.0%}{left}"

    @property
    def _named(self) -> str:
        return f"{self._title}: {printable(self._doing)}" if self._doing else self._title

    def _shown(self, share: float) -> None:
        if self._bar is None:
            self._bar = _bar(self._stream)
            self._bar.start()
            self._bar.add_task(self._named, total=1.0)
        self._bar.update(self._bar.task_ids[0], completed=share, description=self._named)


class LiveLine:
    """One line that says how a long task goes: in place on a terminal, elsewhere now and then where that is asked for."""

    def __init__(self, title: str, *, anyway: bool = False, stream: TextIO | None = None) -> None:
        self._title, self._stream = printable(title), stream or sys.stderr
        self._in_place = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._wanted = anyway or self._stream.isatty()
        self._words: Sequence[str] = ()
        self._share = 0.0
        self._done, self._begun = threading.Event(), 0.0
        self._teller = threading.Thread(target=self._go, name="line", daemon=True)

    def __enter__(self) -> LiveLine:
        self._begun = time.monotonic()
        if self._wanted:
            self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._wanted:
            self._teller.join()

    def tell(self, words: Sequence[str], share: float = 0.0) -> None:
        """Takes what the line says from now on.

        Args: `words` are parts of the line, what matters most first; `share` is how much of the most work is done.
        """
        self._words, self._share = words, share

    def text(self, spent_s: float, room: int | None = None) -> str:
        """Returns the line, without the last parts where the room is too small for all.

        Args: `spent_s` is seconds since the start.
        """
        parts = [*self._words, f"{spent_s:.0f} s"]
        if LEAST_SHARE <= self._share < 1:
            parts.append(f"up to {spent_s * (1 - self._share) / self._share:.0f} s more")
        while room is not None and parts and len(self._title) + 2 + len(", ".join(parts)) > room:
            parts.pop()
        return f"{self._title}: {', '.join(parts)}" if parts else ""

    def _go(self) -> None:
        pause_s, shown = FIRST_LINE_S, False
        while not self._done.wait(pause_s):
            room = room_of(self._stream)
            said = self.text(time.monotonic() - self._begun, None if room is None else room - 1)
            shown = shown or self._in_place
            print(
                f"\r\x1b[2K{said}" if self._in_place else said, end="" if shown else "\n", file=self._stream
            )
            self._stream.flush()
            pause_s = 1 / _A_SECOND if shown else min(2 * pause_s, MOST_RARELY_S)
        if shown:
            print("\r\x1b[2K", end="", file=self._stream, flush=True)


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=stream),
        refresh_per_second=2,  # what is measured beside it in this process should not notice
    )
