"""Numbers as text for people: durations, bytes and rates."""

from __future__ import annotations

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
