"""A schedule made executable: every send and receive in its place, the same on whichever rank derives it.

Ranks here are pipeline workers. A message is one edge between two stages of one pipe for one micro-batch; its
identity is its position in its channel (source worker, target worker, pipe, direction), never a tag.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.schedule.action import Action


class Edge(NamedTuple):
    """Stage `source` feeds stage `target` (any later one: skips go direct)."""

    source: int
    target: int


class Message(NamedTuple):
    """Activations travel source -> target, gradients target -> source or, for a Value with several consumers,
    from each consumer to the one before it, last first."""

    direction: Literal["act", "grad"]
    pipe: int
    micro: int
    sender: int  # stage
    receiver: int  # stage

    def __str__(self) -> str:
        return f"{self.direction}{self.sender}>{self.receiver}.{self.micro}{chr(39) * self.pipe}"


class Instruction(NamedTuple):
    """`compute` runs `action`; `post` makes the receive of `message` ready; `wait` needs it; `send` starts it."""

    op: Literal["compute", "post", "wait", "send"]
    action: Action | None = None
    message: Message | None = None

    def __str__(self) -> str:
        return str(self.action) if self.message is None else f"{self.op}:{self.message}"


@dataclass(frozen=True, kw_only=True)
class Program:
    ranks: tuple[tuple[Instruction, ...], ...]

    @property
    def digest(self) -> str:
        text = "\n".join(" ".join(map(str, rank)) for rank in self.ranks)
        return hashlib.sha256(text.encode()).hexdigest()
