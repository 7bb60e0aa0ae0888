"""Every event on every rank with its times: one type for what a simulation predicts and what a run measures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.schedule import Action, Kind
from planner.shown import Shown

# What a rank records beside actions. COLLECTIVE is a gradient sum while it travels (SYNC is only its launch); SEND
# and WAIT belong to the message of their action's (stage, micro, pipe).
COLLECTIVE, SEND, WAIT = "COLLECTIVE", "SEND", "WAIT"
_NAMES = (*(kind.value for kind in Kind), COLLECTIVE, SEND, WAIT)
_ROW = {name: row for row, name in enumerate(_NAMES)}
_PIPE, _STAGE, _MICRO = 1 << 10, 1 << 16, 1 << 24
_CODES_A_NAME = _PIPE * _STAGE * _MICRO
_CODES = len(_NAMES) * _CODES_A_NAME
_NEVER = (1 << 63) - 1
TIME_COLUMNS = ("step", "rank", "code", "start_ns", "end_ns", "wait_ns")
MEMORY_COLUMNS = ("memory_step", "memory_rank", "memory_ns", "memory_bytes")


class Event(NamedTuple):
    """An action, or something that a rank records beside actions: `name` is a Kind's value, COLLECTIVE, SEND or WAIT."""

    name: str
    stage: int
    micro: int = 0
    pipe: int = 0

    def __str__(self) -> str:
        micro = "" if self.name in (Kind.SYNC, Kind.STEP, COLLECTIVE) else str(self.micro)
        return f"{self.stage}{self.name}{micro}{chr(39) * self.pipe}"


def encode(event: Event | Action) -> int:
    """Packs an event into one integer, which is the same in every process. A Timeline holds these integers.

    Returns: the code that `decode` reads.
    """
    name, stage, micro, pipe = event
    return ((_ROW[str(name)] * _PIPE + pipe) * _STAGE + stage) * _MICRO + micro


def decode(code: int) -> Event:
    """Unpacks the integer that `encode` made of an event.

    Args: `code` is one entry of a timeline's `code` column.
    """
    rest, micro = divmod(code, _MICRO)
    rest, stage = divmod(rest, _STAGE)
    row, pipe = divmod(rest, _PIPE)
    return Event(_NAMES[row], stage, micro, pipe)


def _empty() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Timeline(Shown):
    """Columns of equal length, one row an event. `wait_ns` is how long the rank stood idle right before the event.

    The memory columns are samples of their own: `memory_bytes` are in use from `memory_ns` on.
    """

    step: IntArray = field(default_factory=_empty)
    rank: IntArray = field(default_factory=_empty)
    code: IntArray = field(default_factory=_empty)
    start_ns: IntArray = field(default_factory=_empty)
    end_ns: IntArray = field(default_factory=_empty)
    wait_ns: IntArray = field(default_factory=_empty)
    memory_step: IntArray = field(default_factory=_empty)
    memory_rank: IntArray = field(default_factory=_empty)
    memory_ns: IntArray = field(default_factory=_empty)
    memory_bytes: IntArray = field(default_factory=_empty)

    def __post_init__(self) -> None:
        for group in (TIME_COLUMNS, MEMORY_COLUMNS):
            lengths = {name: len(getattr(self, name)) for name in group}
            if len(set(lengths.values())) > 1:
                raise BadInput(f"a timeline's columns differ in length: {lengths}")
        if len(self.code) and not 0 <= int(self.code.min()) <= int(self.code.max()) < _CODES:
            raise BadInput("a timeline holds the code of no event", allowed=f"0 to {_CODES - 1}")

    def __len__(self) -> int:
        return len(self.code)

    @property
    def makespan_ns(self) -> int:
        """Returns the nanoseconds from the first start to the last end; 0 without events."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @property
    def peak_bytes(self) -> dict[int, int]:
        """Returns the highest memory sample, in bytes, of every rank that has one."""
        ranks = sorted(set(self.memory_rank.tolist()))
        return {rank: int(self.memory_bytes[self.memory_rank == rank].max()) for rank in ranks}

    def events(self) -> list[Event]:
        """Returns the events, one a row."""
        return [decode(code) for code in self.code.tolist()]

    def of_rank(self, rank: int, step: int | None = None) -> Timeline:
        """Returns the rows and memory samples of one rank.

        Args: `step` keeps one step alone; all steps where it is None.
        """
        rows, samples = self.rank == rank, self.memory_rank == rank
        if step is not None:
            rows, samples = rows & (self.step == step), samples & (self.memory_step == step)
        return self._pick(rows, samples)

    def of_step(self, step: int) -> Timeline:
        """Returns the rows and memory samples of one step, for all ranks.

        Args: `step` is a number of the `step` column.
        """
        return self._pick(self.step == step, self.memory_step == step)

    def _pick(self, rows: NDArray[np.bool_], samples: NDArray[np.bool_]) -> Timeline:
        picked = {name: getattr(self, name)[rows] for name in TIME_COLUMNS}
        return Timeline(**picked, **{name: getattr(self, name)[samples] for name in MEMORY_COLUMNS})

    def to_rows(self) -> list[dict[str, int | str]]:
        """Returns one dictionary an event, with its name as text; memory samples are left out."""
        columns = [getattr(self, name).tolist() for name in TIME_COLUMNS]
        rows = zip(*columns, strict=True)
        return [
            {"step": s, "rank": r, "event": str(decode(c)), "start_ns": a, "end_ns": b, "wait_ns": w}
            for s, r, c, a, b, w in rows
        ]

    def to_dict(self) -> dict[str, list[int]]:
        """Returns the columns as lists of integers, by name; `from_dict` reads them back."""
        return {f.name: getattr(self, f.name).tolist() for f in fields(self)}

    @classmethod
    def from_dict(cls, columns: dict[str, list[int]]) -> Timeline:
        """Builds a timeline from columns by name; columns that are missing are empty.

        Raises: BadInput for an unknown column, columns of different length, or a code of no event.
        """
        known = {f.name for f in fields(cls)}
        if unknown := set(columns) - known:
            raise BadInput(
                f"unknown columns {sorted(unknown)} in a timeline", allowed=", ".join(sorted(known))
            )
        return cls(**{name: np.asarray(values, np.int64) for name, values in columns.items()})

    def save(self, path: Path) -> None:
        """Writes the timeline to a file.

        Args: `path` ends in `.npz` for arrays, or in `.jsonl` for one JSON object an event (memory samples have
            `memory_bytes`).
        Raises: BadInput for another ending.
        """
        if path.suffix == ".npz":
            with path.open("wb") as file:
                np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})
        elif path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(line) + "\n" for line in self._lines()))
        else:
            raise BadInput(f"'{path.name}' is no timeline", allowed=".npz or .jsonl")

    def _lines(self) -> Iterable[dict[str, int]]:
        for group in (TIME_COLUMNS, MEMORY_COLUMNS):
            for row in zip(*(getattr(self, name).tolist() for name in group), strict=True):
                yield dict(zip(group, row, strict=True))

    @classmethod
    def load(cls, path: Path) -> Timeline:
        """Reads a file that `save` wrote, `.npz` by its arrays and any other line by line.

        Raises: BadInput where the file cannot be read as a timeline.
        """
        try:
            if path.suffix == ".npz":
                with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                    return cls.from_dict({name: arrays[name] for name in arrays.files})
            columns: dict[str, list[int]] = {}
            for line in path.read_text().splitlines():
                for name, value in dict(json.loads(line)).items():
                    columns.setdefault(name, []).append(int(value))
            return cls.from_dict(columns)
        except (OSError, ValueError, TypeError, BadZipFile) as error:
            raise BadInput(f"cannot read a timeline: {error}", where=str(path)) from error


def from_events(rows: Iterable[tuple[int, int, int, int, int, int]]) -> Timeline:
    """Builds a timeline from the rows that a tracer appends.

    Args: a row is (step, rank, code, start, end, wait), the last three in nanoseconds.
    """
    table = np.array(list(rows), np.int64).reshape(-1, len(TIME_COLUMNS))
    return Timeline(**{name: table[:, i] for i, name in enumerate(TIME_COLUMNS)})


def concatenate(parts: Sequence[Timeline]) -> Timeline:
    """Joins timelines row by row, in the order given.

    Args: `parts` is at least one timeline.
    """
    return Timeline(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Timeline)})
