"""Numbers as text for people: durations, bytes, rates, shares and counts."""

from __future__ import annotations

from collections.abc import Sequence


def format_duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.0f} ns"


def format_bytes(size: float) -> str:
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} B"


def format_rate(per_s: float) -> str:
    """Four digits at least, and no power of ten."""
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.4g}"


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
