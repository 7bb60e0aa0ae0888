"""The tree of all errors that a user can cause; the command line turns each into one message and an exit status.

ShardwrightError
├── BadInput      2  a file, key, name or value that cannot be read as what it should be
├── Infeasible    3  nothing fits; says what is missing, and where
├── BadPlan       4  a well-formed plan that violates the problem statement
├── Unexpected    1  anything that nobody foresaw: an error of shardwright, or of a library
└── Interrupted 130  by Ctrl-C

`Violation` is one thing that is wrong with a well-formed plan; a BadPlan lists all of them.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class ShardwrightError(Exception):
    """Base of all errors meant for users; `status` is the exit status of a command that ends in it."""

    status = 1

    def _render_traceback_(self) -> list[str]:
        """Returns what a notebook shows of the error: the lines up to our first one, and the message.

        What led to it within shardwright and torch is hundreds of lines; `traceback.print_exception(error)` has them.
        """
        own = str(Path(__file__).parents[1])
        frames = traceback.extract_tb(self.__traceback__)
        ours = next((i for i, frame in enumerate(frames) if frame.filename.startswith(own)), len(frames))
        lines = traceback.format_list([frame for frame in frames[:ours] if "IPython" not in frame.filename])
        return [*"".join(lines).splitlines(), f"{type(self).__name__}: {self}"]


class BadInput(ShardwrightError):
    """A file, key, name or value that cannot be used; the message says where it stands and what is allowed."""

    status = 2

    def __init__(self, what: str, *, where: str = "", allowed: str = "") -> None:
        self.what, self.where, self.allowed = what, where, allowed
        place = f"{where}: " if where else ""
        hint = f" (allowed: {allowed})" if allowed else ""
        super().__init__(f"{place}{what}{hint}")


class Infeasible(ShardwrightError):
    """A question to which nothing in the search space fits; the message says what lacks how much, and what would fit."""

    status = 3


class BadPlan(ShardwrightError):
    """A plan that violates the problem statement, or that is for another model."""

    status = 4


class Unexpected(ShardwrightError):
    """An error that nobody foresaw; `trace` is its traceback, which a command writes to a file."""

    def __init__(self, what: str, trace: str) -> None:
        super().__init__(what)
        self.trace = trace

    @classmethod
    def of(cls, error: BaseException) -> Unexpected:
        """Returns any error as one of ours, with the steps in hand that `during` noted."""
        steps = "".join(f", {note}" for note in getattr(error, "__notes__", ())[:1])
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
        first = str(error).strip().partition("\n")[0]
        said = f"unexpected {type(error).__name__}{steps}: {first:.300}{place}"
        return cls(said, "".join(traceback.format_exception(error)))


@contextmanager
def during(step: str) -> Iterator[None]:
    """Notes the step in hand on any error but ours, while it is entered.

    Args: `step` continues the word "while".
    """
    try:
        yield
    except ShardwrightError:
        raise
    except Exception as error:
        error.add_note(f"while {step}")
        raise


def causes(error: BaseException) -> list[str]:
    """Returns what caused an error, a line each, as far as the error does not say it itself."""
    said, found = str(error), []
    while error.__cause__ is not None:
        error = error.__cause__
        first = str(error).strip().partition("\n")[0]
        if first and first not in said:
            found.append(f"{type(error).__name__}: {first:.300}")
    return found


class Interrupted(ShardwrightError):
    """An end by Ctrl-C; the message says what is left."""

    status = 130  # as a shell reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is wrong with a well-formed plan or schedule."""

    rule: str  # a word: layers, batch, places, schedule, hops, memory, ...
    where: str  # "stage 2", "rank 5", "layer 'h.3.attn'", ...; "" for the whole
    message: str  # what is wrong, and what would be right
    picture: str = ""  # the schedule around it, drawn in text

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}" if self.where else f"{self.rule}: {self.message}"


ALIKE_SHOWN = 3  # of violations that differ in numbers only, before the others are counted
_NUMBER = re.compile(r"\d+")


def without_alike(found: Iterable[Violation]) -> Iterator[tuple[Violation, str]]:
    """Yields what a person is told of violations, with what is said behind each of them.

    Where many differ in numbers only, as stages or ranks with the same fault do, the first few are told, and the last of
    those counts the others: " (and 61 more like it, up to stage 63)".
    """
    groups: dict[tuple[str, ...], list[Violation]] = {}
    for each in found:
        key = tuple(_NUMBER.sub("#", text) for text in (each.rule, each.where, each.message))
        groups.setdefault(key, []).append(each)
    for group in groups.values():
        shown = group if len(group) <= ALIKE_SHOWN + 1 else group[:ALIKE_SHOWN]
        more = len(group) - len(shown)
        last = f", up to {group[-1].where}" if group[-1].where else ""
        for each in shown:
            yield each, f" (and {more} more like it{last})" if more and each is shown[-1] else ""
