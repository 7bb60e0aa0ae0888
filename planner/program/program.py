"""A schedule made executable: every send and receive in its place, the same on whichever rank derives it.

Ranks here are the workers of a pipeline. A message is one edge between two stages of one pipe for one micro-batch. Its
identity is its position in its channel (source worker, target worker, pipe, direction), never a tag.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.schedule import Action, Message


class Instruction(NamedTuple):
    """One instruction of a rank.

    `compute` runs `action`, `post` makes the receive of `message` ready, `wait` waits for it, and `send` starts it.
    """

    op: Literal["compute", "post", "wait", "send"]
    action: Action | None = None
    message: Message | None = None

    def __str__(self) -> str:
        return str(self.action) if self.message is None else f"{self.op}:{self.message}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """The instructions of every rank of a pipeline, in order."""

    ranks: tuple[tuple[Instruction, ...], ...]

    @property
    def digest(self) -> str:
        """Returns a hash of all instructions, equal where two programs are."""
        text = "\n".join(" ".join(map(str, rank)) for rank in self.ranks)
        return hashlib.sha256(text.encode()).hexdigest()
