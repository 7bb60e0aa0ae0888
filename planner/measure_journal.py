"""Rows as they are measured, so that an interrupted profile goes on where it stopped.

The first line says what they belong to: a journal of another model, device, version or way of running is begun anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from planner.decode import WrongKey
from planner.errors import BadInput
from planner.measure_events import Done, Optimized, encode, parse

JOURNAL_VERSION = "1"
Facts = Mapping[str, str]
Entry = Done | Optimized


class Journal:
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
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _entries(lines: list[str]) -> list[Entry]:
    """Up to the first line that is not whole: the process may have died while it wrote."""
    found: list[Entry] = []
    for line in lines:
        try:
            entry = parse(line)
        except (ValueError, WrongKey, StopIteration):
            break
        if isinstance(entry, Done | Optimized):
            found.append(entry)
    return found
