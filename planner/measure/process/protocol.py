"""The messages between the measuring process and the waiting one, one JSON object a line, and the journal of rows.

The journal keeps rows as they are measured, so that an interrupted profile continues where it stopped. Its first
line says what the rows belong to. A journal of another model, device, version or way of running begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import BadInput
from planner.files import WrongKey, decode
from planner.model import ModelGraph
from planner.profile import CostKey, LayerCost, OptimizerCost, SampleCost


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """The first message: what the waiting process asks to be measured."""

    workload: str
    arguments: Mapping[str, str]
    device: str
    micros: tuple[int, ...]
    precision: str
    execution: str
    split: str  # module:class of a BackwardSplit; "" where there is none
    spatial: str  # likewise of a SpatialSplit
    grids: tuple[tuple[int, ...], ...]  # spatial splits, beside whole samples
    seconds_per_row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The answer to a request: the captured model and the keys of all rows."""

    graph: ModelGraph
    keys: tuple[CostKey, ...]  # of every row that there can be
    device: str
    versions: Mapping[str, str]
    said: str = ""  # what the user is told of the module, such as that it was not run
    left_out: tuple[str, ...] = ()  # micro-batches that the model does not serve, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The rows that are still to be measured."""

    keys: tuple[CostKey, ...]
    optimizer: bool  # is still to be measured
    alone: bool  # one row at a time, to find the one that ends the process


@dataclass(frozen=True, slots=True)
class Begun:
    """A notice that these rows are under way; if the process ends before their results, one of them is the reason."""

    keys: tuple[CostKey, ...]


@dataclass(frozen=True, slots=True)
class MeasureProgress:
    share: float  # of the time for all rows that were pending


@dataclass(frozen=True, slots=True)
class Done:
    """One measured row."""

    key: CostKey
    cost: LayerCost
    slack_bytes: int  # kept on top of the outputs if a layer keeps these, since their storages are larger


@dataclass(frozen=True, slots=True)
class Failed:
    """One row that cannot be had, and why."""

    key: CostKey
    why: str


@dataclass(frozen=True, slots=True)
class Optimized:
    cost: OptimizerCost


@dataclass(frozen=True, slots=True)
class SamplesRead:
    """What reading samples takes, once all rows are measured; or why it was not timed."""

    cost: SampleCost | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Mixed:
    """Where the training depends on its micro-batches, in words; empty where nothing tells."""

    said: str


@dataclass(frozen=True, slots=True)
class RanBeside:
    """What ran beside the measuring, once all rows are measured."""

    others: float  # share of the machine's processor time that other processes took


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A BadInput of the workload or the capture, as it was raised there."""

    what: str
    where: str
    allowed: str
    trace: str = ""  # of an error that nobody foresaw


RowEvent = Begun | MeasureProgress | Done | Failed
Message = MeasureRequest | Ready | Pending | RowEvent | Optimized | SamplesRead | Mixed | RanBeside | Refused
_KINDS: tuple[type[Message], ...] = (
    MeasureRequest,
    Ready,
    Pending,
    Begun,
    MeasureProgress,
    Done,
    Failed,
    Optimized,
    SamplesRead,
    Mixed,
    RanBeside,
    Refused,
)


def encode(message: Message) -> str:
    """Returns a message as one line of JSON, without the line's end.

    Args: `message` is written with the name of its class.
    """
    return json.dumps({type(message).__name__: asdict(message)}, allow_nan=False)


def parse(line: str) -> Message:
    """Returns the message that a line holds.

    Args: `line` is what `encode` made.
    Raises: ValueError, StopIteration or WrongKey where the line holds no message.
    """
    ((name, data),) = json.loads(line).items()
    kind = next(kind for kind in _KINDS if kind.__name__ == name)
    return decode(kind, data)


JOURNAL_VERSION = "1"
Facts = Mapping[str, str]
Entry = Done | Optimized


class Journal:
    """A file of the rows measured so far."""

    def __init__(self, path: Path | None, facts: Facts) -> None:
        self._path = path
        self._head = json.dumps({"journal": JOURNAL_VERSION, **facts}, sort_keys=True)
        self.found = self._read()
        self._write("w", [self._head, *map(encode, self.found)])

    def _read(self) -> list[Entry]:
        if self._path is None or not self._path.exists():
            return []
        head, *lines = self._path.read_text(encoding="utf-8").split("\n")
        return _entries(lines) if head == self._head else []

    def add(self, entry: Entry) -> None:
        """Appends one result.

        Args: `entry` is on disk when this returns, unless the journal has no path.
        Raises: BadInput where the file cannot be written.
        """
        self._write("a", [encode(entry)])

    def _write(self, mode: str, lines: list[str]) -> None:
        if self._path is None:
            return
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", where=str(self._path)) from None

    def remove(self) -> None:
        """Removes the file, once all rows are in a profile."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _entries(lines: list[str]) -> list[Entry]:
    """Returns the results up to the first line that is not whole, since the process may have died while it wrote."""
    found: list[Entry] = []
    for line in lines:
        try:
            entry = parse(line)
        except (ValueError, WrongKey, StopIteration):
            break
        if isinstance(entry, Done | Optimized):
            found.append(entry)
    return found
