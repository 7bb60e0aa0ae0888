"""What a graph that is no chain is made of when its stages are searched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sent:
    source: int  # element
    readers: tuple[int, ...]
    cost: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """Elements by number; `before[k]` are those that must come before k, which has no cycles."""

    cost: tuple[float, ...]
    size: tuple[float, ...]
    before: tuple[tuple[int, ...], ...]
    sent: tuple[Sent, ...] = ()

    @property
    def count(self) -> int:
        return len(self.cost)
