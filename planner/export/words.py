"""Command lines as text: written one flag a line, and read back without a shell.

A script may hold several commands and comments; what counts is the words. Nothing is executed or expanded.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TypeVar

from planner.errors import BadInput

MOST_DIGITS = 18
MOST_COUNT = 10**9

T = TypeVar("T")
Flags = Mapping[str, str]  # without dashes, words joined by "_"; "true" where a flag has no value


def command(words: Sequence[str], flags: Mapping[str, object], *, about: str = "") -> str:
    """Writes a command, one flag a line.

    Args: a flag that is True stands alone, and one that is False, None or empty is left out. `about` is a comment
      above it.
    """
    own = [
        f"--{name} {shlex.quote(str(value))}" if value is not True else f"--{name}"
        for name, value in _said(flags)
    ]
    lines = [" ".join(map(shlex.quote, words)), *own]
    head = "".join(f"# {line}\n" for line in about.splitlines())
    return head + " \\\n  ".join(lines) + "\n"


def _said(flags: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(name, value) for name, value in flags.items() if value not in (False, None, "")]


def words_of(text: str, where: str) -> list[str]:
    """Returns the words of a script or of a list of flags.

    Raises: BadInput where quotes are left open.
    """
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise BadInput(
            f"is no list of flags: {error}", where=where, allowed="words as a shell reads them"
        ) from None


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Returns the flags among some words, each with its value; the last of several counts.

    Args: `words` may have `--flag value`, `--flag=value` and flags alone.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if not name.startswith("--") or len(name) < 3:
            continue
        if not equals:
            follows = at < len(words) and not words[at].startswith("--")
            value = words[at] if follows else "true"
        found[name[2:].replace("-", "_")] = value
    return found


def whole(flags: Mapping[str, object], name: str, where: str, default: T) -> int | T:
    """Returns a whole number among flags or settings, the default where it is not there.

    Raises: BadInput for a value that is no whole number.
    """
    value = flags.get(name)
    if value is None:
        return default
    text = str(value)
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or len(text) > MOST_DIGITS:
        raise BadInput(f"{name} is {text[:40]!r}", where=where, allowed="a whole number")
    return int(text)


def count(flags: Mapping[str, object], name: str, where: str, default: T) -> int | T:
    """Returns how many of something there are, such as replicas or samples; the default where nothing says it.

    Raises: BadInput for a value that is no whole number, is below 1, or is more than anybody has.
    """
    found = whole(flags, name, where, None)
    if found is not None and not 1 <= found <= MOST_COUNT:
        raise BadInput(f"{name} is {found}", where=where, allowed=f"1 to {MOST_COUNT}")
    return default if found is None else found


def flag(flags: Mapping[str, object], name: str, default: bool = False) -> bool:
    """Returns whether a flag is set; `no`, `false`, 0 and an empty value are not."""
    value = flags.get(name)
    return default if value is None else str(value).lower() not in ("", "0", "false", "no", "none")


def refuse_more_than_one(settings: Mapping[str, object], names: Mapping[str, str], where: str) -> None:
    """Refuses degrees of a parallelism that no plan of ours has.

    Args: `names` has what each key means.
    Raises: BadInput names the first one above 1.
    """
    for name, about in names.items():
        degree = whole(settings, name, where, 1)
        if degree > 1:
            raise BadInput(
                f"{name} is {degree}: {about}, which no price is known for", where=where, allowed="1"
            )


def chosen(value: str, table: Mapping[str, T], name: str, where: str) -> T:
    """Returns what a word of a trainer means here.

    Raises: BadInput for a word that means nothing.
    """
    if value.lower() not in table:
        raise BadInput(f"{name} is '{value}'", where=where, allowed=", ".join(table))
    return table[value.lower()]
