"""Numbers as text for people: durations, bytes, rates, shares and counts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from planner.arrays import NS_PER_S


def format_duration(ns: float) -> str:
    """Returns a duration as text with four digits.

    Example: format_duration(1_234_567) is "1.235 ms".
    """
    for unit, size in (("s", NS_PER_S), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.0f} ns"


def format_bytes(size: float) -> str:
    """Returns a number of bytes as text with four digits.

    Example: format_bytes(3 * 2**20) is "3 MiB".
    """
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} B"


def format_rate(per_s: float) -> str:
    """Returns a rate as text with four digits at least, and no power of ten.

    Example: format_rate(12_345.6) is "12,346".
    """
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


def format_clock(seconds: float) -> str:
    """Returns the time of day of a moment; question marks for a year that no clock knows.

    Args: `seconds` are since the epoch.
    """
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "??:??:??"


_WORDS = ("no", "one", "two", "three", "four")


def plural(count: int, word: str, many: str = "") -> str:
    """Returns a number with its noun, such as "2 stages"; `many` is the noun's plural where it is not regular."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def number_word(number: int) -> str:
    """Returns a small number as a word."""
    return _WORDS[number] if number < len(_WORDS) else f"{number:,}"


def numbered(word: str, numbers: Sequence[int]) -> str:
    """Returns numbers behind their noun, such as "stages 1, 2"."""
    return f"{word if len(numbers) == 1 else word + 's'} {', '.join(map(str, numbers))}"


def format_percent(share: float) -> str:
    """Returns a share in per cent; what is not nothing does not read as nothing."""
    if share and abs(share) < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if share else "0 %"
