"""The one representation of a schedule: for each worker a list of actions that prints, parses back and diffs.

>>> from planner.schedule import generate
>>> schedule = generate("1f1b", workers=2, micros=2)
>>> print(schedule.to_text())
0F0 0F1 0B0 0B1 0SYNC 0STEP
1F0 1B0 1F1 1B1 1SYNC 1STEP
>>> parse_action("1B0'")
Action(kind=<Kind.B: 'B'>, stage=1, micro=0, pipe=1)

Text of an action: `2F3` is the forward pass of stage 2 for micro-batch 3. `2F3'` is the forward pass in pipe 1 and
`2F3''` that in pipe 2. `2SYNC` launches the gradient sum of stage 2 and `2STEP` its update, with `'` for the pipe. A
worker is one line, its actions separated by blanks. Sends and receives are never written here: `planner.program.lower`
adds them.

Terms:
- a *stage* is a run of consecutive layers;
- a *worker* is one position in the pipeline and holds one stage or several;
- a *micro-batch* is a part of a worker's batch;
- a *pipe* is one direction of a Chimera pair.

`draw` marks some actions of a schedule, for messages that show where something is wrong.
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
    """The kinds of an action: forward, backward whole or in halves, recomputation, gradient sum and update."""

    F = "F"  # forward
    B = "B"  # whole backward
    I = "I"  # noqa: E741  input half of the backward
    W = "W"  # weight half of the backward
    R = "R"  # recompute the forward from the kept stage inputs
    SYNC = "SYNC"  # launch the gradient sum of a stage over its replicas
    STEP = "STEP"  # update a stage's parameters


class Action(NamedTuple):
    """One thing that a worker does: a kind, a stage, a micro-batch and a pipe; `parse_action` reads its `str`."""

    kind: Kind
    stage: int
    micro: int = 0  # micro-batch, numbered over all pipes; 0 for SYNC and STEP
    pipe: int = 0

    def __str__(self) -> str:
        micro = "" if self.kind in (Kind.SYNC, Kind.STEP) else str(self.micro)
        return f"{self.stage}{self.kind.value}{micro}{chr(39) * self.pipe}"


_ACTION = re.compile(r"([0-9]{1,7})(?:(F|B|I|W|R)([0-9]{1,7})|(SYNC|STEP))('*)")


def parse_action(text: str) -> Action:
    """Reads one action.

    Example: parse_action("2F3'") is the forward of stage 2 for micro-batch 3 in pipe 1.
    Raises: BadInput where the text is no action.
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise BadInput(f"'{text}' is no action", allowed="such as 2F3, 0B1', 1I0, 1W0, 1R0, 2SYNC, 2STEP")
    stage, kind, micro, whole, pipe = match.groups()
    return Action(Kind(kind or whole), int(stage), int(micro or 0), len(pipe))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The actions that every worker of one pipeline does in one step, in order.

    `place[pipe][stage]` is the worker that holds the stage in that pipe; a worker may hold several.
    Micro-batches are numbered 0..micros-1 over all pipes; `pipe_of[micro]` says which pipe carries each.
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
        """Returns the orders as text, one line a worker; `from_text` reads it back."""
        return "\n".join(" ".join(map(str, order)) for order in self.orders)

    def diff(self, other: Schedule) -> str:
        """Compares the orders with those of another schedule.

        Returns: one line a change, with its worker and the two actions before it; empty where nothing
            differs.
        """
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
    """Reads a schedule from what `to_text` prints. Whether the schedule can run is for `check` to say.

    Args: `place[pipe][stage]` is a worker and `pipe_of[micro]` a pipe; `text` has one line a worker.
    Raises: BadInput where an action cannot be read, or the number of lines is not the number of workers.
    """
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
    """Reads orders, one line a worker.

    Returns: the actions of each worker.
    Raises: BadInput for a word that is no action.
    """
    return tuple(tuple(parse_action(word) for word in line.split()) for line in lines)


class Edge(NamedTuple):
    """A pair of stages: `source` feeds `target`, which may be any later stage, because skips go direct."""

    source: int
    target: int


class Message(NamedTuple):
    """The tensors that travel between two stages for one micro-batch.

    Activations travel from producer to consumer. Gradients travel back; a Value with several consumers passes
    from each consumer to the one before, the last consumer first.
    """

    direction: Literal["act", "grad"]
    pipe: int
    micro: int
    sender: int  # stage
    receiver: int  # stage

    def __str__(self) -> str:
        return f"{self.direction}{self.sender}>{self.receiver}.{self.micro}{chr(39) * self.pipe}"


_AROUND = 8  # actions shown on either side of a mark


class Spot(NamedTuple):
    """A place in a schedule: a worker and an index into its order."""

    worker: int
    position: int  # index in the worker's order


def draw(orders: Sequence[Sequence[Action]], marks: Mapping[Spot, str]) -> str:
    """Draws orders with some actions marked.

    Args: `marks` says, for each spot, why it is marked.
    Returns: one line a worker; a marked action stands in brackets and its line ends in `<-- here: why`.
    """
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
