"""How every command speaks: people read standard output, programs read one JSON object there with `--json`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from planner.errors import BadInput, ShardwrightError
from planner.tables import columns as columns

MOST_RARELY_S = 300.0  # between two words of what takes long

_ANSWERS: ContextVar[TextIO | None] = ContextVar("_ANSWERS", default=None)


@contextmanager
def answers_alone() -> Iterator[None]:
    """Only answers reach standard output; what a workload of the user prints goes to standard error."""
    before = _ANSWERS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _ANSWERS.reset(before)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where results, progress and warnings of one command go."""

    as_json: bool

    def result(self, data: object, text: Callable[[], str]) -> None:
        """The one result of a command: as JSON, or as text for people."""
        print(json.dumps(data) if self.as_json else text(), file=_ANSWERS.get(), flush=True)

    def note(self, text: str) -> None:
        """What is worth saying on the way; never part of the result."""
        print(text, file=sys.stderr, flush=True)


@contextmanager
def patient(doing: str, first_s: float = 1.0) -> Iterator[None]:
    """Says every now and then, ever more rarely, that something which takes long is still being done."""
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        pause_s = first_s
        while not done.wait(pause_s):
            print(f"{doing}: {time.monotonic() - begun:.0f} s so far", file=sys.stderr, flush=True)
            pause_s = min(2 * pause_s, MOST_RARELY_S)

    teller = threading.Thread(target=tell, name="patient", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def report_error(error: ShardwrightError, *, as_json: bool) -> int:
    if as_json:
        print(
            json.dumps({"error": {"kind": type(error).__name__, "message": str(error)}}), file=_ANSWERS.get()
        )
    print(f"error: {error}", file=sys.stderr)
    return error.status


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers, each at least 1, in order and without repeats."""
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise BadInput(
            f"'{text}' is no list of whole numbers", where=option, allowed="such as 1,2,4"
        ) from None
    if numbers[0] < 1:
        raise BadInput(f"{numbers[0]} is too small", where=option, allowed="1 or more")
    return tuple(numbers)


def grids(text: str, option: str) -> tuple[tuple[int, ...], ...]:
    """`1,2,2x2` as parts along each dim; whole samples, 1 or 1x1, are not among them."""
    try:
        found = [tuple(int(part) for part in word.split("x")) for word in text.split(",")]
    except ValueError:
        raise BadInput(f"'{text}' is no list of parts", where=option, allowed="such as 1,2,2x2") from None
    least = min(part for grid in found for part in grid)
    if least < 1:
        raise BadInput(f"{least} is too small", where=option, allowed="1 or more")
    return tuple(dict.fromkeys(grid for grid in found if max(grid) > 1))


def refuse_overwrite(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise BadInput(
            "exists already", where=str(path), allowed="--force to overwrite it, or -o with another name"
        )
    if not path.parent.is_dir():
        raise BadInput("no such folder", where=str(path.parent))
    if path.is_dir():
        raise BadInput("is a folder", where=str(path), allowed="the name of a file")
    if not os.access(path.parent, os.W_OK):
        raise BadInput("cannot write into this folder", where=str(path.parent), allowed="one to write into")


def refuse_folder(path: Path, force: bool) -> None:
    """A new folder, an empty one, or with `force` one whose files of the same names may go."""
    if path.is_dir() and (force or not any(path.iterdir())):
        return
    if path.is_dir():
        raise BadInput(
            "exists already, and is not empty",
            where=str(path),
            allowed="--force to overwrite what is in it, or -o with another name",
        )
    refuse_overwrite(path, force=False)


def write_folder(path: Path, texts: Mapping[str, str]) -> None:
    """All files of these names, or none."""
    try:
        _write_folder(path, texts)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None


def _write_folder(path: Path, texts: Mapping[str, str]) -> None:
    made = Path(tempfile.mkdtemp(dir=path.parent, prefix=".shardwright-"))
    try:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")
        path.mkdir(exist_ok=True)
        for name in texts:
            (made / name).replace(path / name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """The file appears complete or not at all."""
    try:
        _write_whole(path, text)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None


def _write_whole(path: Path, text: str) -> None:
    # The name is not part of the temporary one: it may be as long as a name can be.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".shardwright-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.0f} ns"


def memory(size: float) -> str:
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} B"
