"""The one representation of a schedule: for each worker a list of actions that prints, parses back and diffs.

Text of an action: `2F3` is the forward pass of stage 2 for micro-batch 3, `2F3'` the same in pipe 1, `2F3''` in
pipe 2; `2SYNC` launches the gradient sum of stage 2, `2STEP` its update, with `'` a pipe as above. A worker is one
line, its actions separated by blanks. Sends and receives are never written here: `lower` derives them.

A schedule as text with some of its actions marked, for messages that have to show where something is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Literal, NamedTuple

from planner.errors import BadInput


class Kind(StrEnum):
    F = "F"  # forward
    B = "B"  # whole backward
    I = "I"  # noqa: E741  input half of the backward
    W = "W"  # weight half of the backward
    R = "R"  # recompute the forward from the kept stage inputs
    SYNC = "SYNC"  # sum the gradients of a stage over its holders
    STEP = "STEP"  # update a stage's parameters


class Action(NamedTuple):
    kind: Kind
    stage: int
    micro: int = 0  # micro-batch, numbered over all pipes; 0 for SYNC and STEP
    pipe: int = 0

    def __str__(self) -> str:
        micro = "" if self.kind in (Kind.SYNC, Kind.STEP) else str(self.micro)
        return f"{self.stage}{self.kind.value}{micro}{chr(39) * self.pipe}"


_ACTION = re.compile(r"([0-9]{1,7})(?:(F|B|I|W|R)([0-9]{1,7})|(SYNC|STEP))('*)")


def parse_action(text: str) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise BadInput(f"'{text}' is no action", allowed="such as 2F3, 0B1', 1I0, 1W0, 1R0, 2SYNC, 2STEP")
    stage, kind, micro, whole, pipe = match.groups()
    return Action(Kind(kind or whole), int(stage), int(micro or 0), len(pipe))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What every worker of one pipeline group does in one step, in order.

    `place[pipe][stage]` is the worker that holds the stage in that pipe; a worker may hold several. Micro-batches
    are numbered 0..micros-1 over the whole group; `pipe_of[micro]` says which pipe carries each.
    """

    family: str
    place: tuple[tuple[int, ...], ...]
    pipe_of: tuple[int, ...]
    orders: tuple[tuple[Action, ...], ...]  # one a worker
    settings: dict[str, int | float | str | bool] = field(default_factory=dict)  # pairs, chunks, caps, ...

    @property
    def workers(self) -> int:
        return len(self.orders)

    @property
    def stages(self) -> int:
        return len(self.place[0])

    @property
    def pipes(self) -> int:
        return len(self.place)

    @property
    def micros(self) -> int:
        return len(self.pipe_of)

    def to_text(self) -> str:
        return "\n".join(" ".join(map(str, order)) for order in self.orders)

    def diff(self, other: Schedule) -> str:
        """What `other` does differently, worker by worker, each change with the actions around it; empty when equal."""
        lines: list[str] = []
        for worker in range(max(self.workers, other.workers)):
            before = self.orders[worker] if worker < self.workers else ()
            after = other.orders[worker] if worker < other.workers else ()
            lines += _changes(worker, before, after)
        if self.place != other.place:
            lines.insert(0, f"place: {self.place} -> {other.place}")
        if self.pipe_of != other.pipe_of:
            lines.insert(0, f"pipe_of: {self.pipe_of} -> {other.pipe_of}")
        return "\n".join(lines)


def from_text(
    text: str,
    *,
    place: tuple[tuple[int, ...], ...],
    pipe_of: tuple[int, ...],
    family: str = "custom",
    settings: dict[str, int | float | str | bool] | None = None,
) -> Schedule:
    """A schedule from what `to_text` prints; whether it can run is the checker's question."""
    if not (place and all(place)):
        raise BadInput("a placement without stages", allowed="pipes of one stage or more")
    orders = parse_orders(text.strip("\n").split("\n"))
    workers = 1 + max(max(pipe) for pipe in place)
    if len(orders) != workers:
        raise BadInput(f"{len(orders)} lines of actions", allowed=f"one a worker, {workers}")
    return Schedule(family=family, place=place, pipe_of=pipe_of, orders=orders, settings=settings or {})


def _changes(worker: int, before: tuple[Action, ...], after: tuple[Action, ...]) -> list[str]:
    if before == after:
        return []
    old, new = list(map(str, before)), list(map(str, after))
    lines = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            context = " ".join(old[max(0, i1 - 2) : i1]) or "start"
            lines.append(
                f"worker {worker} at {i1} after {context}: - {' '.join(old[i1:i2])} + {' '.join(new[j1:j2])}"
            )
    return lines


def parse_orders(lines: Iterable[str]) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(parse_action(word) for word in line.split()) for line in lines)


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


_AROUND = 8  # actions shown on either side of a mark


class Spot(NamedTuple):
    worker: int
    position: int  # index in the worker's order


def draw(orders: Sequence[Sequence[Action]], marks: Mapping[Spot, str]) -> str:
    """One line a worker; a marked action stands in brackets and its line ends in `<-- here: why`."""
    centre = min((spot.position for spot in marks), default=0)
    return "\n".join(_line(worker, order, marks, centre) for worker, order in enumerate(orders))


def _line(worker: int, order: Sequence[Action], marks: Mapping[Spot, str], centre: int) -> str:
    mine = {spot.position: why for spot, why in marks.items() if spot.worker == worker}
    middle = min(mine, default=centre)
    low, high = max(0, middle - _AROUND), min(len(order), middle + _AROUND + 1)
    words = [f"[{order[i]}]" if i in mine else str(order[i]) for i in range(low, high)]
    words += [f"[{order[i]}]" for i in mine if i >= high and i < len(order)]
    before, after = "... " if low > 0 else "", " ..." if high < len(order) else ""
    end = f"  <-- here: {'; '.join(mine.values())}" if mine else ""
    return f"worker {worker}: {before}{' '.join(words)}{after}{end}"
