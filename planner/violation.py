"""One thing that is wrong with a well-formed plan or schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    rule: str  # a word: layers, batch, places, schedule, hops, memory, ...
    where: str  # "stage 2", "rank 5", "layer 'h.3.attn'", ...; "" for the whole
    message: str  # what is wrong, and what would be right
    picture: str = ""  # the schedule around it, drawn in text

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}" if self.where else f"{self.rule}: {self.message}"
