"""Every event on every rank with its times: one type for what a simulation predicts and what a run measures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from planner.arrays import IntArray
from planner.errors import BadInput
from planner.files import open_regular, whole_lines
from planner.schedule import Action, Kind
from planner.shown import Shown

# What a rank is busy with; all other time it stands idle. SYNC only launches a sum.
BUSY = frozenset(kind.value for kind in Kind) - {Kind.SYNC.value}
# What a rank records beside actions. COLLECTIVE is a gradient sum while it travels (SYNC is only its launch); SEND
# and WAIT belong to the message of their action's (stage, micro, pipe).
COLLECTIVE, SEND, WAIT = "COLLECTIVE", "SEND", "WAIT"
_NAMES = (*(kind.value for kind in Kind), COLLECTIVE, SEND, WAIT)
_ROW = {name: row for row, name in enumerate(_NAMES)}
_PIPE, _STAGE, _MICRO = 1 << 10, 1 << 16, 1 << 24
_CODES_A_NAME = _PIPE * _STAGE * _MICRO
_CODES = len(_NAMES) * _CODES_A_NAME
_NEVER = (1 << 63) - 1
_LATEST = 1 << 60  # nanoseconds, or bytes: 36 years
TIME_COLUMNS = ("step", "rank", "code", "start_ns", "end_ns", "wait_ns")
MOST_BYTES = 128 * 2**20  # of the columns of a file, unpacked: three million events
MOST_PACKED = 16  # times the size of a larger file
MEMORY_COLUMNS = ("memory_step", "memory_rank", "memory_ns", "memory_bytes")
CLOCK_COLUMNS = ("clock_rank", "clock_start", "clock_offset_ns", "clock_error_ns")
CONVERSION_COLUMNS = ("conversion_step", "conversion_rank", "conversion_code", "conversion_ns")
_GROUPS = (TIME_COLUMNS, MEMORY_COLUMNS, CLOCK_COLUMNS, CONVERSION_COLUMNS)


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

    The memory columns are samples of their own: `memory_bytes` are in use from `memory_ns` on. The clock columns have a
    row a rank: the start of its run, what its times were moved by to the first rank's clock, and the error of that. The
    conversion columns say how long actions were busy with conversions of tensors in parts, where there are any.
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
    clock_rank: IntArray = field(default_factory=_empty)
    clock_start: IntArray = field(default_factory=_empty)
    clock_offset_ns: IntArray = field(default_factory=_empty)
    clock_error_ns: IntArray = field(default_factory=_empty)
    conversion_step: IntArray = field(default_factory=_empty)
    conversion_rank: IntArray = field(default_factory=_empty)
    conversion_code: IntArray = field(default_factory=_empty)
    conversion_ns: IntArray = field(default_factory=_empty)

    def __post_init__(self) -> None:
        for group in _GROUPS:
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

    def since(self, step: int) -> Timeline:
        """Returns the rows and memory samples of step `step` and of all that come after it."""
        return self._pick(self.step >= step, self.memory_step >= step)

    def _pick(self, rows: NDArray[np.bool_], samples: NDArray[np.bool_]) -> Timeline:
        picked = {name: getattr(self, name)[rows] for name in TIME_COLUMNS}
        rest = {name: getattr(self, name) for name in (*CLOCK_COLUMNS, *CONVERSION_COLUMNS)}
        return Timeline(**picked, **{name: getattr(self, name)[samples] for name in MEMORY_COLUMNS}, **rest)

    def step_lengths(self) -> dict[int, int]:
        """Returns the nanoseconds from the first start to the last end of every step, by its number."""
        numbers, at = np.unique(self.step, return_inverse=True)
        first, last = np.full(len(numbers), _NEVER), np.full(len(numbers), -_NEVER)
        np.minimum.at(first, at, self.start_ns)
        np.maximum.at(last, at, self.end_ns)
        return dict(zip(numbers.tolist(), (last - first).tolist(), strict=True))

    def steps_after(self, first: int) -> list[int]:
        """Returns the steps without the first ones, in order; the last one alone where there are too few.

        Args: `first` is how many are left out.
        """
        every = sorted(set(self.step.tolist()))
        return every[min(first, max(0, len(every) - 1)) :]

    def misfit(self, *, ranks: int, stages: int) -> str:
        """Returns why the events cannot be those of a plan; empty where they can.

        Args: `ranks` and `stages` are the plan's numbers of them.
        """
        if not len(self):
            return "it holds no event"
        stage = self.code // _MICRO % _STAGE
        named = {
            "rank": (self.rank, ranks),
            "stage": (stage, stages),
            "memory_rank": (self.memory_rank, ranks),
            "clock_rank": (self.clock_rank, ranks),
            "conversion_rank": (self.conversion_rank, ranks),
        }
        for name, (column, count) in named.items():
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < count:
                return f"it holds a {name} beyond the plan's {count}"
        for name in (*TIME_COLUMNS, *MEMORY_COLUMNS, *CONVERSION_COLUMNS):
            column = getattr(self, name)
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < _LATEST:
                return f"its column {name} holds numbers below 0 or beyond {_LATEST}"
        return "an event ends before it starts" if bool((self.end_ns < self.start_ns).any()) else ""

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
    def from_dict(cls, columns: Mapping[str, Sequence[int] | IntArray]) -> Timeline:
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
        for group in _GROUPS:
            for row in zip(*(getattr(self, name).tolist() for name in group), strict=True):
                yield dict(zip(group, row, strict=True))

    @classmethod
    def load(cls, path: Path) -> Timeline:
        """Reads a file that `save` wrote, `.npz` by its arrays and any other line by line.

        Raises: BadInput where the file cannot be read as a timeline.
        """
        if path.suffix == ".npz":
            return cls.from_dict(_arrays(path))
        columns: dict[str, list[int]] = {}
        try:
            for line in whole_lines(path, max_bytes=MOST_BYTES):
                for name, value in dict(json.loads(line)).items():
                    columns.setdefault(name, []).append(int(value))
            return cls.from_dict(columns)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise BadInput(f"cannot read a timeline: {error}", where=str(path)) from error


def _arrays(path: Path) -> dict[str, IntArray]:
    """Returns the columns in a zip file, whose directory is judged before anything is unpacked."""
    known = {f.name for f in fields(Timeline)}
    try:
        with open_regular(path) as file, ZipFile(file) as inside:
            sizes = {row.filename.removesuffix(".npy"): row.file_size for row in inside.infolist()}
            packed = os.fstat(file.fileno()).st_size
            if sum(sizes.values()) > max(MOST_BYTES, MOST_PACKED * packed) or set(sizes) - known:
                allowed = f"the columns of a timeline, of at most {MOST_BYTES} bytes"
                raise BadInput(
                    f"cannot read a timeline: holds {len(sizes)} arrays", where=str(path), allowed=allowed
                )
            return {name: _column(inside, name, sizes[name]) for name in sizes}
    except BadInput:
        raise
    except Exception as error:  # zipfile, zlib and numpy name no class for what they refuse
        raise BadInput(f"cannot read a timeline: {error}", where=str(path)) from error


def _column(inside: ZipFile, name: str, size: int) -> IntArray:
    with inside.open(f"{name}.npy") as file:
        raw = file.read(size + 1)
    found: NDArray[np.generic] = np.load(BytesIO(raw), allow_pickle=False)
    if (found.size and found.dtype.kind != "i") or found.ndim != 1:
        raise ValueError(f"'{name}' is no column of whole numbers")
    return found.astype(np.int64, copy=False)


def from_events(rows: Iterable[tuple[int, int, int, int, int, int]]) -> Timeline:
    """Builds a timeline from the rows that a tracer appends.

    Args: a row is (step, rank, code, start, end, wait), the last three in nanoseconds.
    """
    table = np.array(list(rows), np.int64).reshape(-1, len(TIME_COLUMNS))
    return Timeline(**{name: table[:, i] for i, name in enumerate(TIME_COLUMNS)})
